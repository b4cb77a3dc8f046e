"""The words of generated graphs: each one distinctive word, so that a small tokenizer can keep it whole.

Lower levels use a prefix of each list.
"""

ENTITIES = (
    *("Alice", "Bob", "Carla", "David", "Elena", "Frank", "Grace", "Hugo", "Irene", "Jack", "Karen", "Leo"),
    *("Maria", "Nora", "Oscar", "Paula", "Quinn", "Ruth", "Simon", "Tara", "Ursula", "Victor", "Wendy", "Xavier"),
    *("Yara", "Zoe", "Arthur", "Bianca", "Cedric", "Diana", "Edgar", "Fiona", "George", "Helen", "Igor", "Julia"),
    *("Kevin", "Laura", "Martin", "Nina", "Oliver", "Petra", "Ralph", "Sonia", "Thomas", "Ulrich", "Vera", "Walter"),
    *("Yusuf", "Zelda", "Anton", "Bella", "Conrad", "Doris", "Ethan", "Flora", "Gustav", "Hanna", "Ivan", "Judith"),
    *("Klaus", "Lydia", "Moses", "Norma"),
)

RELATIONS = ("boss", "friend", "doctor", "neighbor", "tutor", "rival", "cousin", "lawyer", "partner", "coach")
