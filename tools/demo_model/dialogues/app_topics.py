"""What the model knows about the program it lives in: its keys, commands and panels, and what they mean."""

from __future__ import annotations

from random import Random

from .turns import Topic, Turn, topics

TOPICS: list[Topic] = topics("""
# They ask who I am.
? Who are you? | What are you? | Introduce yourself. | Are you a person? | Are you human? | Who am I talking to? | Are you a robot? | Tell me about yourself.
= I am a tiny demo language model. I ship with this program so that you can try it at once.
= I am a very small mixture-of-experts model that runs on your own machine.
= I am a small demo model. I am not a person, but I am happy to chat.

# They ask what I can do.
? What can you do? | What can you help me with? | How can you help me? | What do you know? | What should I ask you? | What are you good at? | Can you help me?
= I can chat, do simple sums, tell short stories, answer simple questions and write small Python functions.
= I know simple facts, simple arithmetic, short stories and small pieces of Python. Ask me one of those.
= Try a sum like 12 + 7, ask for a story about a fox, or ask me for a Python function.

# They ask how big I am.
? How big are you? | How many parameters do you have? | Are you a large model? | Are you smart? | Are you as good as a big model?
= I am tiny. A real model of this kind is thousands of times larger, so please do not expect too much.
= I have only a few million parameters, so I make mistakes. A larger model would do better.

# They ask about experts.
? What is a mixture of experts? | What are experts? | How do your experts work? | What is an expert in a model? | Explain mixture of experts. | What is MoE?
= A mixture of experts is a model with many small networks, called experts. A router picks a few of them for each token.
= My layers hold many small experts. For every token a router picks the best few, so most experts rest.

# They ask about the router.
? What is the router? | What does the router do? | How are experts chosen?
= The router looks at a token and chooses the few experts that should work on it.

# They ask about offload.
? What is expert offload? | What is offload? | Why are experts on the SSD? | How does SSD offload work? | Why do you read from disk? | What is expert streaming?
= With expert offload the experts stay on the SSD and are read only when the router picks them. A cache keeps the popular ones in memory.
= Most experts are not needed for a given token. The program keeps them on disk and loads the chosen ones, so a big model fits in little memory.

# They ask about the expert cache panel.
? What is the expert cache? | What does the expert cache panel show? | What is the hit rate? | What is a cache hit? | What is a cache miss?
= The expert cache keeps popular experts in memory. Its panel shows the hit rate, the misses, and how full the cache is.
= A hit means that an expert was already in memory. A miss means that it had to be read from the SSD.

# They ask about the SSD panel.
? What does the SSD panel show? | What are SSD reads? | What is the SSD reads panel? | What do p50 and p95 mean?
= The SSD panel shows how long expert reads take, how many bytes per second are read, and how long decoding waits for them.

# They ask about MTP.
? What is MTP? | What is a draft head? | What is multi-token prediction? | How does speculative decoding work? | What are draft tokens? | What does MTP mean? | How does MTP work?
= MTP means multi-token prediction. A small extra layer guesses the next tokens, and the main model checks them all at once.
= A draft layer guesses a few tokens ahead. The main model checks the guesses in one pass and keeps those that match, so the text comes faster.

# They ask about acceptance.
? What is the acceptance rate? | What does acceptance mean? | What does the MTP panel show? | What does the draft panel show? | What is draft acceptance?
= Acceptance is the share of drafted tokens that the main model agrees with. The MTP panel shows it, with the tokens per round.

# They ask about a round.
? What is a round? | What are tokens per round? | What does tok/round mean?
= A round is one draft and one check. Tokens per round says how many tokens each round adds to the text.

# They ask about fallback.
? What is fallback? | What does FALLBACK mean? | What does the fallback panel show? | Why did MTP stop?
= When many rounds in a row have no accepted draft, MTP falls back to plain decoding until the reply ends. The fallback panel shows the counter.

# They ask about PARKED.
? What does PARKED mean? | Why is MTP parked? | What does WARM mean? | What are the MTP states?
= PARKED means that drafting would not pay at the moment, so the program decodes plainly and tries again later.

# They ask how to switch MTP.
? How do I turn MTP off? | How do I turn MTP on? | How do I switch MTP? | How can I disable MTP? | How can I enable MTP? | What does Ctrl+T do?
= Press Ctrl+T or F4 to switch MTP on and off, even while I am writing. The command is /mtp auto, /mtp fixed or /mtp off.

# They ask about the decode panel.
? What does the decode panel show? | What does tok/s mean? | What is TTFT? | How fast are you? | What is tokens per second?
= The decode panel shows tokens per second. TTFT is the time to the first token of a reply.

# They ask about prefill.
? What is prefill? | What happens before the first token? | What is prefix reuse?
= Prefill reads your whole prompt before the first token is written. What is already in the cache is reused.

# They ask about the context meter.
? What is the context meter? | What does ctx mean? | What is the context? | What happens when the context is full?
= The context meter shows how much of the model's memory for this conversation is used. When it is full you are asked what to do.

# They ask about the memory panel.
? What does the memory panel show? | How much memory do you use? | How much RAM do you need?
= The memory panel shows how much memory the weights, the expert cache and the context take.

# They ask how to quit.
? How do I quit? | How do I exit? | How can I leave the chat? | What is the command to quit? | How do I close the program? | How do I leave?
= Type /quit or press Ctrl+Q to leave the chat.
= You can leave with /quit, with Ctrl+Q, or with Ctrl+D on an empty line.

# They ask how to stop an answer.
? How do I stop an answer? | How can I interrupt you? | You talk too much, how do I stop you? | How do I stop you? | What does Esc do? | What does Ctrl+C do?
= Press Esc while I am writing and I will stop. What I wrote so far is kept.

# They ask how to start over.
? How do I start over? | How do I start a new chat? | How can I reset the conversation? | How do I begin a new chat? | What does Ctrl+N do? | How do I clear the chat?
= Type /new or press Ctrl+N to start a new chat.

# They ask about older chats.
? How do I find old chats? | Where are my conversations? | How do I open an old chat? | What does Ctrl+S do? | What does /sessions do? | Are my chats saved?
= Press Ctrl+S or type /sessions to see your conversations. You can search, rename and delete them there.

# They ask about renaming.
? How do I rename a chat? | Can I change the title? | What does /rename do?
= Type /rename and the new title.

# They ask for a new answer.
? How do I regenerate an answer? | Can you answer again? | How do I get another answer? | What does /regen do? | How do I retry?
= Type /regen and I will answer your last question again.

# They ask about editing.
? How do I edit my question? | Can I change my last message? | What does /edit do? | How do I edit and resend?
= Type /edit to change your last message and send it again.

# They ask about copying.
? How do I copy an answer? | How do I copy your reply? | What does /copy do? | Can I copy the text?
= Type /copy to copy my last reply. For a code block use /code.

# They ask about copying code.
? How do I copy code? | How do I copy a code block? | What does /code do?
= Type /code to copy the last code block.

# They ask about export.
? How do I export the chat? | Can I save the chat to a file? | What does /export do? | How do I get Markdown?
= Type /export md for Markdown or /export json for JSON.

# They ask about the system prompt.
? How do I set a system prompt? | What is the system prompt? | What does /system do?
= Type /system and your text. The system prompt tells the model how to behave.

# They ask about temperature.
? How do I change the temperature? | What is temperature? | How do I make you more creative? | What does /set do?
= Type /set temp and a number, for example /set temp 0.7. A higher temperature makes the text more random.

# They ask about thinking.
? How do I turn thinking off? | How do I turn thinking on? | What is thinking? | What does /think do? | Why do you think first?
= Type /think on or /think off, or press Alt+T. With thinking on I write a short thought before the answer.

# They ask about seeing thoughts.
? How do I see your thoughts? | How do I open a thought? | What does Ctrl+O do? | How do I hide your thoughts?
= Press Ctrl+O to open or fold all my thoughts.

# They ask about the panels.
? How do I see the metrics? | What does F2 do? | How do I show the panels? | How do I hide the panels? | What are the panels? | Where are the statistics?
= Press F2 to switch the panels between full, strip and off. They show decoding, MTP, the expert cache and the SSD.

# They ask about statistics as text.
? What does /stats do? | How do I print the statistics? | Can I copy the numbers?
= Type /stats to print the numbers of the engine as text.

# They ask about themes.
? How do I change the theme? | How do I change the colors? | Is there a dark mode? | Is there a light theme? | What does /theme do?
= Type /theme to pick another theme. There are dark and light ones.

# They ask about the keys.
? What are the keys? | Can I change the keys? | What shortcuts are there? | What does /keys do? | How do I see the shortcuts?
= Type /keys to see all keys. You can change them in the [keys] table of the config file.

# They ask for help.
? Where can I get help? | How do I see the commands? | What commands are there? | Is there a help page? | help | /help | What does F1 do?
= Press F1 or type /help to see the commands and keys.

# They ask about the palette.
? What does Ctrl+P do? | What is the command palette? | How do I open the menu?
= Ctrl+P opens the command palette, where you can search for every command.

# They ask about a new line.
? How do I write a new line? | How do I type more than one line? | What does Ctrl+J do? | How do I write a long prompt?
= Press Ctrl+J or Shift+Enter for a new line. Enter sends the message.

# They ask about an editor.
? Can I use my editor? | What does Ctrl+G do? | How do I open an editor?
= Press Ctrl+G to write your message in your own editor.

# They ask about the history of prompts.
? How do I get my last prompt back? | What do the arrow keys do? | Is there a prompt history?
= Press the up arrow in the first line to get your earlier prompts.

# They ask about scrolling.
? How do I scroll? | How do I scroll up? | How do I see older messages? | How do I get to the end?
= Use Page Up and Page Down to scroll. Ctrl+End goes back to the newest text.

# They ask about selecting messages.
? How do I select a message? | What does Tab do? | How do I move between messages?
= Press Tab to move into the messages. There y copies one, e edits it and r answers again. Esc goes back.

# They ask about the log.
? Where is the log? | What does F12 do? | How do I see errors?
= Press F12 to see the log.

# They ask about redrawing.
? The screen looks broken. | How do I redraw the screen? | What does Ctrl+L do?
= Press Ctrl+L to draw the screen again.

# They ask about files.
? Can I attach a file? | How do I send you a file? | How do I add a file? | Can you read a file?
= Type @ and the path of a text file. Its text is sent with your message.

# They ask about the internet.
? Do you need the internet? | Are you online? | Do you send my data anywhere? | Is this chat private? | Do you work offline?
= No data leaves your machine. I run on it and need no internet.
= Everything stays on your machine. I work offline.

# They ask about a bigger model.
? How do I load a bigger model? | Can I use another model? | How do I change the model? | Can I run the full model? | How do I open the real model? | How do I get a better model?
= Start the program with qwen-chat --model and the folder of the real model. It is much larger and much better than me.
= Yes. Start qwen-chat --model with the folder of a bigger model, and its experts are streamed from your SSD.

# They ask about the config.
? Where is the config file? | How do I configure the program? | Where are the settings? | How do I change the settings?
= The settings are in a TOML file. Run qwen-chat config --paths to see where it is.

# They ask about the benchmark.
? How do I measure the speed? | Is there a benchmark? | How do I run the benchmark?
= Run qwen-chat bench to measure the speed.

# They ask about a check.
? Will the big model fit? | What does doctor do? | How do I check my machine?
= Run qwen-chat doctor. It says whether a model fits your memory.

# They ask about the name of the program.
? What is this program? | What is qwen-chat? | What program is this?
= This is qwen-chat, a chat in your terminal. It runs mixture-of-experts models on your own machine.

# They ask about MLX.
? What is MLX? | What runs you? | Which library do you use?
= MLX is a library for arrays and neural networks. This program uses it to run me.

# They ask about the layers.
? What is Gated DeltaNet? | What is linear attention? | How does your attention work?
= Most of my layers use Gated DeltaNet, which keeps a small state instead of all tokens. Every fourth layer uses attention.

# They ask whether MTP changes the text.
? Does MTP change the answer? | Is the text the same with MTP? | Does drafting make mistakes?
= No. Every draft is checked by the main model, so the text is the same with and without MTP.
""")


def app_turn(r: Random) -> list[Turn]:
    return [r.choice(TOPICS).turn(r)]
