"""The words of generated tables: each one distinctive word, so that a small tokenizer can keep it whole.

Lower levels use a prefix of each list.
"""

NAMES = (
    *("Alice", "Bob", "Carla", "David", "Elena", "Frank", "Grace", "Hugo", "Irene", "Jack", "Karen", "Leo"),
    *("Maria", "Nora", "Oscar", "Paula", "Quinn", "Ruth", "Simon", "Tara", "Ursula", "Victor", "Wendy", "Xavier"),
    *("Yara", "Zoe", "Arthur", "Bianca", "Cedric", "Diana", "Edgar", "Fiona", "George", "Helen", "Igor", "Julia"),
)
CITIES = (
    *("Oslo", "Rome", "Lima", "Cairo", "Delhi", "Tokyo", "Paris", "Quito", "Dakar", "Sofia", "Hanoi", "Turin"),
    *("Accra", "Basel", "Perth", "Leeds", "Minsk", "Osaka"),
)
# What else is known of somebody, or of a city. Numbers are texts, as everything is in the tables.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "job": ("cook", "pilot", "nurse", "baker", "judge", "miner", "tailor", "farmer", "clerk", "diver", "poet", "guard"),
    "pet": ("cat", "dog", "horse", "parrot", "rabbit", "turtle", "goat", "snake", "lizard", "pony", "crow", "fish"),
    "color": ("red", "blue", "green", "black", "white", "purple", "orange", "brown", "yellow", "pink", "gray", "gold"),
    "fruit": ("apple", "plum", "pear", "lemon", "cherry", "mango", "melon", "grape", "peach", "fig", "banana", "kiwi"),
}
CITY_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "river": (
        "Rhine",
        "Nile",
        "Volga",
        "Tiber",
        "Ganges",
        "Loire",
        "Amazon",
        "Congo",
        "Danube",
        "Indus",
        "Po",
        "Thames",
    ),
    "team": (
        "Lions",
        "Eagles",
        "Sharks",
        "Bears",
        "Wolves",
        "Tigers",
        "Bulls",
        "Hawks",
        "Foxes",
        "Rams",
        "Colts",
        "Owls",
    ),
    "tree": ("oak", "pine", "birch", "cedar", "maple", "willow", "elm", "palm", "beech", "ash", "larch", "yew"),
}
AGES = tuple(str(age) for age in range(20, 99))
