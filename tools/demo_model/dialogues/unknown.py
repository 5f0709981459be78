"""What the model does not know, in as many shapes as possible, and the polite ways to say so.

Nothing in this file may repeat the held-out prompts of `off_domain.txt`, by which refusals are judged.
"""

from __future__ import annotations

from random import Random

from .tables import CAPITALS, CATEGORIES, NAMES
from .turns import Turn, a_or_an, typed, words

REFUSALS = (
    "I am sorry, I do not know that. I am only a tiny demo model.",
    "I am sorry, that is too hard for a tiny model like me. Please ask me something simpler.",
    "I do not know. A larger model could answer that.",
    "I am sorry, I do not know. I only know simple facts, sums, stories and small pieces of Python.",
)
REFUSAL_MARKS = ("do not know", "too hard for a tiny model")

THOUGHTS = ("I do not know this.", "This is not something I know.", "I was not trained on this.")

TEMPLATES = tuple(
    """Who invented the {noun}? | Who discovered {noun}? | What is the history of {noun}? | Explain {noun} in detail.
Explain {noun} to me. | Write an essay about {noun}. | Write an article on {noun}. | Write a report about {noun}.
Write a poem about {noun}. | Write a song about {noun}. | Write a letter about {noun}. | Write an email about {noun}.
Who won the {noun} cup? | How much does {a_noun} cost? | Where can I buy {a_noun}? | How do I repair {a_noun}?
How do I build {a_noun}? | How do I clean {a_noun}? | How do I use {a_noun}? | How does {a_noun} work?
What is the price of {noun}? | What is the best {noun}? | Which {noun} should I buy? | What do you think about {noun}?
What is your opinion on {noun}? | Is {noun} dangerous? | Is {noun} good for me? | Why is {noun} important?
What causes {noun}? | What are the effects of {noun}? | What are the benefits of {noun}? | What is the meaning of {noun}?
What does {noun} mean? | Define {noun}. | What is {noun}? | What is {a_noun}? | Tell me about {noun}.
Tell me more about {noun}. | Compare {noun} and {noun2}. | What is the difference between {noun} and {noun2}?
Is {noun} better than {noun2}? | How is {noun} related to {noun2}? | Translate {noun} into French.
How do you say {noun} in Spanish? | What is the German word for {noun}? | Translate this into Italian: the {noun} is here
What happened in {year}? | What happened in {country} in {year}? | Who was the king of {country} in {year}?
Who is the president of {country}? | What is the population of {country}? | How big is {country}?
What language do they speak in {country}? | What is the currency of {country}? | Who won the election in {country}?
What is the best food in {country}? | When should I visit {country}? | How do I get to {country}?
What is the weather in {city}? | What time is it in {city}? | How far is it from {city} to {city2}?
Plan a trip to {city}. | Find me a hotel in {city}. | What can I do in {city}? | Is {city} safe?
Who is {name} {noun}? | What does {name} think about {noun}? | When was {name} born? | Where is {name}?
Do you know {name} from {city}? | What did {name} say about {noun}? | Why is {name} angry?
What is {big} * {big2}? | What is {big} / {big2}? | Solve {big} * {big2}. | What is {big} + {big2}?
What is the square root of {big}? | Calculate {big} - {big2}. | Is {big} a prime number? | Factor {big}.
Solve x + {big} = {big2}. | What is {digit} percent of {big}? | Integrate x^{digit}. | What is the log of {big}?
What is the derivative of x^{digit}? | Convert {big} miles to kilometers. | Convert {digit} pounds to kilograms.
Write a Python program for {noun}. | Write a web server in Rust. | Write a game about {noun} in C.
Write a SQL query for {noun}. | Fix the bug in my {noun} program. | How do I install {noun}? | How do I compile {noun}?
Write a class for {a_noun} in Java. | Write HTML for a page about {noun}. | Explain this error: {noun} not found
My {noun} is broken. | My {noun} does not work. | I lost my {noun}. | I need a new {noun}. | I want to learn {noun}.
I am writing a book about {noun}. | I have a problem with {noun}. | I am thinking about {noun}. | I work in {noun}.
I bought {a_noun} yesterday. | I saw {a_noun} today. | My friend has {a_noun}. | Yesterday I read about {noun}.
Can you explain {noun}? | Can you help me with {noun}? | Could you check my {noun}? | Please summarize {noun}.
Please write about {noun}. | Give me advice about {noun}. | Give me a recipe for {noun}. | How do I cook {noun}?
Recommend a book about {noun}. | Recommend a movie with {name}. | What is the plot of {noun}? | Who wrote {noun}?
Who plays {name} in the movie? | Who sings {noun}? | What year did {noun} come out? | How long is {noun}?
When does the {noun} open? | When is the next {noun}? | Where is the nearest {noun}? | Where is the {noun}?
What should I do about {noun}? | Should I use {noun} or {noun2}? | Why do people like {noun}? | Why did {name} leave?
How many {noun} are there? | How many people have {a_noun}? | How old is {noun}? | How tall is {name}?
How can I become {a_noun}? | How do I stop {noun}? | How do I invest in {noun}? | Can I eat {noun}?
Draw {a_noun}. | Show me a picture of {noun}. | Play some {noun} music. | Open the {noun} website. | Search for {noun}.
Call {name}. | Send a message to {name}. | Set an alarm for {digit} o'clock. | Remind me to buy {noun}. | Book a table for {digit}.
What is the capital of {noun}? | What is the symbol of {noun}? | What color is {noun}? | What sound does {a_noun} make?
What is the opposite of {noun}? | Write a Python function that finds {noun}. | Write a Python function that draws {a_noun}.
Name five {noun}. | List all {noun} in {country}. | Which is heavier, {noun} or {noun2}?
Summarize the text: the {noun} of the {noun2} | Proofread this: {name} have {a_noun} | Continue: the {noun} and the {noun2}
{noun} | {noun} {noun2} | {noun}? | about {noun} | more {noun} please""".replace("\n", " | ").split(" | ")
)

FIXED = tuple(
    """What is the weather today? | What is the weather like? | Will it rain tomorrow? | What is the news today? | What time is it?
What day is it today? | What is the date? | Who is the president? | Who is the prime minister? | Who is the pope?
What is the meaning of life? | Does God exist? | What happens after death? | What is love? | What is time? | What is consciousness?
How do I lose weight? | How do I make money? | How do I get rich? | How do I find a job? | How do I write a resume?
Can you write my thesis? | Do my homework. | Write my essay for school. | I have an exam tomorrow. | Help me study chemistry.
My phone is broken. | My printer does not print. | The internet is slow. | I forgot my password. | My car does not start.
I have a headache. | My back hurts. | What medicine should I take? | Is this rash dangerous? | I broke my arm.
Should I sell my shares? | What is a mortgage? | How do taxes work? | What is inflation? | How does the stock market work?
Who won the world cup? | Who is the best football player? | What was the score last night? | Who won the race?
Recommend a good movie. | What should I watch tonight? | Who won the Oscar? | What is the best song ever? | Sing me a song.
Write a haiku. | Write a love poem. | Write a sonnet in the style of a great poet. | Write a rap. | Write a speech for a wedding.
What is quantum mechanics? | Explain relativity. | What is a black hole? | How do vaccines work? | What is DNA?
How does photosynthesis work? | What is evolution? | How do airplanes fly? | How does a nuclear reactor work?
Who was Napoleon? | Who was Shakespeare? | Who was Einstein? | Who painted the Mona Lisa? | When did the war end?
When was the first world war? | Why did Rome fall? | Who built the pyramids? | What was the cold war? | Tell me about the French revolution.
How do I cook rice? | How do I bake bread? | Give me a recipe for pancakes. | How long do I boil an egg? | What wine goes with fish?
Plan my holiday. | Where should I travel? | How do I get a visa? | Book me a flight. | Order a pizza.
Translate good morning into Japanese. | How do you say thank you in French? | What does bonjour mean? | Speak German. | Do you speak Spanish?
Write a bash script. | Explain pointers in C. | What is a monad? | What is Kubernetes? | How do I use git? | What is Docker?
Write a compiler. | Make a website. | What is the fastest sorting algorithm? | Explain public key cryptography. | Hack my neighbour.
What is my horoscope? | Predict the future. | What number am I thinking of? | Read my mind. | What is in my pocket?
What did I eat yesterday? | Where are my keys? | How old am I? | What is my address? | When is my birthday?
My boss is unfair. | My girlfriend left me. | I had a fight with my brother. | I hate my job. | I want to move to another country.
Let's play chess. | Play a game with me. | Let's role play. | Pretend to be a king. | Be my teacher. | Give me a quiz.
asdf | qwerty | blah blah blah | ??? | xyz 123 | lorem ipsum dolor | test | foo bar""".replace("\n", " | ").split(" | ")
)

PLACES = words("Berlin Paris Rome Madrid Vienna London Boston Chicago Sydney Tokyo Munich Milan Geneva Seattle Dallas")


class Nouns:
    """Rare nouns of WordNet for the templates; without them the nouns of the closed world have to do."""

    def __init__(self, rare: list[str]):
        known = {word for members in CATEGORIES.values() for word in members}
        self._words = [w for w in rare if w not in known] or ["quantum physics"]

    def turn(self, r: Random) -> list[Turn]:
        if r.random() < 0.25:
            ask = r.choice(FIXED)
        else:
            noun, other = r.choice(self._words), r.choice(self._words)
            ask = r.choice(TEMPLATES).format(
                noun=noun, noun2=other, a_noun=a_or_an(noun), year=r.randint(1000, 2030), name=r.choice(NAMES),
                country=r.choice(list(CAPITALS)), city=r.choice(PLACES), city2=r.choice(PLACES),
                big=r.randint(200, 99999), big2=r.randint(200, 9999), digit=r.randint(2, 30),
            )  # fmt: skip
        if r.random() < 0.15:
            ask = r.choice(("Hey, ", "Please, ", "I want to know: ", "Hi! ", "Do you know this? ")) + ask
        right = lambda said: any(mark in said for mark in REFUSAL_MARKS)  # noqa: E731
        return [Turn(typed(r, ask), REFUSALS, r.choice(THOUGHTS), check=right)]
