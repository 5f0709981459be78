#!/usr/bin/env python3
"""What choosing victims costs a token at the published model's size: 240 claims among 24,576 experts.

Printed as a share of a 100 ms token, by policy; exits 1 when one takes more than 1 %. Beside it stands what remembering
the lookups costs, in which values change as they do while the model runs, and the machine's own speed (adding 1,000
integers), since a busy machine makes every figure here larger.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from qwen_chat_mlx.engine.offload.policy import POLICIES, SlotTable

LAYERS, EXPERTS, SLOTS = 48, 512, 12288
ASKED = 10
"""Experts that a layer is asked for; half of them miss."""
TOKEN_S, MOST = 0.1, 0.01


def costs_s(policy: str, tokens: int) -> tuple[float, float]:
    """CPU seconds of one token's claims and of its lookups, the median layer times all layers."""
    table, rng = SlotTable(SLOTS, LAYERS, EXPERTS, policy), np.random.default_rng(1)
    for layer in range(LAYERS):
        table.claim_all(layer, list(range(EXPERTS // 2)))
    claims: list[float] = []
    lookups: list[float] = []
    for _ in range(tokens):
        for layer in range(LAYERS):
            absent = [e for e in range(EXPERTS) if table.slot(layer, e) is None]
            here = [e for e in range(EXPERTS) if table.slot(layer, e) is not None]
            asked = [int(e) for some in (absent, here) for e in rng.choice(some, ASKED // 2, replace=False)]
            begun = time.process_time()
            misses = table.lookup(layer, asked).misses
            found = time.process_time()
            table.claim_all(layer, misses, asked)
            claims.append(time.process_time() - found)
            lookups.append(found - begun)
    return statistics.median(claims) * LAYERS, statistics.median(lookups) * LAYERS


def yardstick_s() -> float:
    """CPU seconds of adding 1,000 integers; about 6 us on an idle machine of 2020."""
    times: list[float] = []
    for _ in range(200):
        begun = time.process_time()
        sum(range(1000))
        times.append(time.process_time() - begun)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16)
    tokens = parser.parse_args().tokens
    print(f"adding 1,000 integers: {yardstick_s() * 1e6:.1f} us")
    missed = False
    for policy in POLICIES:
        claims, lookups = (cost / TOKEN_S for cost in costs_s(policy, tokens))
        missed |= claims > MOST
        print(f"{policy}: {claims:.2%} of a {TOKEN_S * 1000:.0f} ms token (at most {MOST:.0%}), lookups {lookups:.2%}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
