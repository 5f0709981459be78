"""The closed world the demo model knows: names, animals, capitals, elements, word pairs, categories, colours."""

from __future__ import annotations

from .turns import phrases, words

NAMES = words(
    "Anna Ben Carla David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Wendy Alex "
    "Lucy Max Nina Oscar Lily Tom Sara Finn Clara Peter Julia Mark Laura Simon Eva Daniel Maria John"
)

# animal: sound, young, legs, home
ANIMALS = {
    "dog": ("woof", "puppy", 4, "a kennel"), "cat": ("meow", "kitten", 4, "a house"),
    "cow": ("moo", "calf", 4, "a farm"), "pig": ("oink", "piglet", 4, "a farm"),
    "sheep": ("baa", "lamb", 4, "a meadow"), "horse": ("neigh", "foal", 4, "a stable"),
    "duck": ("quack", "duckling", 2, "a pond"), "hen": ("cluck", "chick", 2, "a coop"),
    "frog": ("ribbit", "tadpole", 4, "a pond"), "lion": ("roar", "cub", 4, "the savanna"),
    "bee": ("buzz", "larva", 6, "a hive"), "owl": ("hoot", "owlet", 2, "a forest"),
    "bear": ("growl", "cub", 4, "a forest"), "mouse": ("squeak", "pup", 4, "a hole"),
    "wolf": ("howl", "pup", 4, "a forest"), "goat": ("bleat", "kid", 4, "a hill"),
    "fox": ("bark", "kit", 4, "a den"), "rabbit": ("squeak", "kit", 4, "a burrow"),
    "elephant": ("trumpet", "calf", 4, "the savanna"), "snake": ("hiss", "snakelet", 0, "the grass"),
    "spider": (None, "spiderling", 8, "a web"), "ant": (None, "larva", 6, "an anthill"),
    "whale": ("song", "calf", 0, "the sea"), "penguin": ("squawk", "chick", 2, "the ice"),
    "squirrel": ("chatter", "kit", 4, "a tree"),
}  # fmt: skip
BY_SIZE = words(
    "ant bee spider mouse frog squirrel rabbit cat fox dog goat sheep wolf pig lion bear cow horse elephant whale"
)

CAPITALS = dict(
    pair.split("|")
    for pair in """France|Paris;Germany|Berlin;Italy|Rome;Spain|Madrid;Portugal|Lisbon;Poland|Warsaw;Austria|Vienna;
Hungary|Budapest;Greece|Athens;Sweden|Stockholm;Norway|Oslo;Denmark|Copenhagen;Finland|Helsinki;Ireland|Dublin;
England|London;the United Kingdom|London;Scotland|Edinburgh;Wales|Cardiff;Belgium|Brussels;the Netherlands|Amsterdam;
Switzerland|Bern;Russia|Moscow;Ukraine|Kyiv;Turkey|Ankara;Egypt|Cairo;Kenya|Nairobi;Nigeria|Abuja;Ghana|Accra;
Morocco|Rabat;Ethiopia|Addis Ababa;South Africa|Pretoria;India|New Delhi;China|Beijing;Japan|Tokyo;South Korea|Seoul;
Thailand|Bangkok;Vietnam|Hanoi;Indonesia|Jakarta;the Philippines|Manila;Malaysia|Kuala Lumpur;Australia|Canberra;
New Zealand|Wellington;Canada|Ottawa;the United States|Washington, D.C.;Mexico|Mexico City;Cuba|Havana;Brazil|Brasilia;
Argentina|Buenos Aires;Chile|Santiago;Peru|Lima;Colombia|Bogota;Venezuela|Caracas;Iran|Tehran;Iraq|Baghdad;
Israel|Jerusalem;Saudi Arabia|Riyadh;Pakistan|Islamabad;Nepal|Kathmandu;Iceland|Reykjavik;Czechia|Prague;
Romania|Bucharest;Bulgaria|Sofia;Serbia|Belgrade;Croatia|Zagreb;Slovakia|Bratislava;Slovenia|Ljubljana;
Estonia|Tallinn;Latvia|Riga;Lithuania|Vilnius""".replace("\n", "").split(";")
)

ELEMENTS = phrases(
    "hydrogen H,helium He,lithium Li,beryllium Be,boron B,carbon C,nitrogen N,oxygen O,fluorine F,neon Ne,sodium Na,"
    "magnesium Mg,aluminium Al,silicon Si,phosphorus P,sulfur S,chlorine Cl,argon Ar,potassium K,calcium Ca,"
    "scandium Sc,titanium Ti,vanadium V,chromium Cr,manganese Mn,iron Fe,cobalt Co,nickel Ni,copper Cu,zinc Zn"
)

OPPOSITES = phrases(
    "hot cold,big small,up down,left right,day night,black white,happy sad,fast slow,open closed,old new,dark bright,"
    "heavy light,good bad,rich poor,hard soft,wet dry,full empty,high low,long short,early late,near far,strong weak,"
    "loud quiet,clean dirty,sweet sour,thick thin,wide narrow,first last,start stop,true false,yes no,inside outside,"
    "above below,buy sell,love hate,push pull,win lose,give take,begin end,ask answer,arrive leave,brave afraid,"
    "cheap expensive,deep shallow,easy difficult,friend enemy,front back,laugh cry,north south,east west,sink float,"
    "smooth rough,summer winter,top bottom"
)
PAST = phrases(
    "go went,see saw,eat ate,run ran,come came,give gave,write wrote,sing sang,swim swam,drink drank,buy bought,"
    "bring brought,think thought,teach taught,catch caught,fly flew,draw drew,grow grew,know knew,throw threw,"
    "speak spoke,break broke,choose chose,sleep slept,keep kept,feel felt,meet met,send sent,build built,find found,"
    "make made,say said,tell told,sit sat,stand stood,hold held,hear heard,pay paid,wear wore,drive drove,ride rode,"
    "fall fell,hide hid,walk walked,play played,jump jumped,cook cooked,help helped,talk talked,paint painted,"
    "wash washed,watch watched,smile smiled"
)
PLURALS = phrases(
    "cat cats,dog dogs,box boxes,child children,man men,woman women,foot feet,tooth teeth,mouse mice,goose geese,"
    "sheep sheep,fish fish,leaf leaves,knife knives,wolf wolves,baby babies,city cities,bus buses,glass glasses,"
    "potato potatoes,tomato tomatoes,book books,tree trees,house houses,key keys,day days,berry berries,fox foxes,"
    "person people,star stars"
)

# The order is what a list is recited in: the next item after any one is always the same.
CATEGORIES = {
    "animals": words("dog cat cow pig sheep horse duck hen frog lion bee owl bear mouse wolf goat fox rabbit"),
    "fruits": words("apple banana pear orange cherry plum peach grape lemon mango kiwi melon"),
    "vegetables": words("carrot potato onion pea bean cabbage spinach pepper leek beet"),
    "colors": words("red blue green yellow orange purple black white brown pink gray"),
    "tools": words("hammer saw drill wrench pliers screwdriver file axe"),
    "instruments": words("piano guitar violin drum flute trumpet harp cello"),
    "planets": words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
    "drinks": words("water tea coffee milk juice lemonade cocoa"),
    "sports": words("football tennis swimming running hockey rowing cycling skiing"),
    "trees": words("oak pine birch maple willow ash elm fir"),
    "clothes": words("shirt hat coat sock shoe scarf glove belt"),
    "languages": words("Python C Rust Go Java Ruby Perl Lua Swift"),
    "countries": words("France Germany Italy Spain Portugal Poland Austria Hungary Greece Sweden Norway Denmark"),
    "flowers": words("rose tulip daisy lily violet sunflower poppy"),
}
SINGULAR = {
    "animals": "animal", "fruits": "fruit", "vegetables": "vegetable", "colors": "color", "tools": "tool",
    "instruments": "instrument", "planets": "planet", "drinks": "drink", "sports": "sport", "trees": "tree",
    "flowers": "flower",
}  # fmt: skip
UNCOUNTED = ("colors", "sports", "drinks", "planets")
"""Kinds whose members take no article: red is a color, a rose is a flower."""

COLOR_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "coal": "black",
    "a strawberry": "red", "a carrot": "orange", "milk": "white", "a lemon": "yellow", "blood": "red",
    "chocolate": "brown", "a flamingo": "pink", "an elephant": "gray", "the sun": "yellow", "a pine tree": "green",
    "a plum": "purple", "the sea": "blue", "a tomato": "red",
}  # fmt: skip
COLOR_MIX = {
    ("red", "blue"): "purple", ("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "white"): "pink",
    ("black", "white"): "gray",
}  # fmt: skip

DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")

FACTS = [
    tuple(line.split("|"))
    for line in """How many days are in a week?|There are seven days in a week.
How many months are in a year?|There are twelve months in a year.
How many hours are in a day?|There are 24 hours in a day.
How many minutes are in an hour?|There are 60 minutes in an hour.
How many seconds are in a minute?|There are 60 seconds in a minute.
How many days are in a year?|There are 365 days in a year, and 366 in a leap year.
How many letters are in the English alphabet?|There are 26 letters in the English alphabet.
What is the biggest planet?|Jupiter is the biggest planet in the solar system.
What is the smallest planet?|Mercury is the smallest planet in the solar system.
Which planet do we live on?|We live on Earth, the third planet from the sun.
Which planet is closest to the sun?|Mercury is the planet closest to the sun.
What is the moon?|The moon is a large ball of rock that goes around the Earth.
What is the sun?|The sun is a star. It gives the Earth light and warmth.
Why is the sky blue?|The air scatters blue light from the sun more than red light, so the sky looks blue.
Why does it rain?|Water in clouds joins into drops. When the drops get heavy, they fall as rain.
What is water made of?|Water is made of hydrogen and oxygen.
At what temperature does water boil?|Water boils at 100 degrees Celsius at sea level.
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.
What is ice?|Ice is frozen water.
What is snow?|Snow is made of tiny crystals of ice that fall from clouds.
How many legs does a spider have?|A spider has eight legs.
How many legs does an insect have?|An insect has six legs.
What do bees make?|Bees make honey.
What do cows eat?|Cows eat grass and hay.
What do plants need to grow?|Plants need light, water, air and some minerals from the soil.
How many continents are there?|There are seven continents.
Name the continents.|The continents are Africa, Antarctica, Asia, Australia, Europe, North America and South America.
What is the largest ocean?|The Pacific Ocean is the largest ocean.
What is the tallest mountain?|Mount Everest is the tallest mountain above sea level.
What is the longest river?|The Nile is usually called the longest river.
What is the fastest land animal?|The cheetah is the fastest land animal.
What is the largest animal?|The blue whale is the largest animal.
How many sides does a triangle have?|A triangle has three sides.
How many sides does a square have?|A square has four equal sides.
How many sides does a hexagon have?|A hexagon has six sides.
What shape is a ball?|A ball is a sphere.
What are the four seasons?|The four seasons are spring, summer, autumn and winter.
What are the primary colors?|The primary colors of paint are red, yellow and blue.
What colors are in a rainbow?|A rainbow has red, orange, yellow, green, blue, indigo and violet.
What is a computer?|A computer is a machine that follows instructions to work with information.
What is a program?|A program is a list of instructions for a computer.
What is a bug?|In programming, a bug is a mistake that makes a program do the wrong thing.
What is an algorithm?|An algorithm is a step by step way to solve a problem.
What is a variable?|A variable is a name that holds a value in a program.
What is a function?|A function is a named piece of code that you can call with arguments.
What is a loop?|A loop runs the same code again and again until it is done.
What is a list in Python?|A list in Python is an ordered collection of values, such as [1, 2, 3].
What is a dictionary in Python?|A dictionary in Python maps keys to values, such as {"a": 1}.
What is a string?|A string is a piece of text, such as "hello".
What is an integer?|An integer is a whole number, such as 7 or -3.
What is a byte?|A byte is a group of eight bits.
What is an SSD?|An SSD is a disk made of flash memory. It has no moving parts and is fast.
What is RAM?|RAM is the working memory of a computer. It is fast, but it is empty after a restart.
What is a GPU?|A GPU is a chip that does many simple calculations at the same time.
What is a terminal?|A terminal is a window where you type commands and read text.""".splitlines()
]
