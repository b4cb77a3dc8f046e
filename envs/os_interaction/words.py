"""The words of generated chores: each one distinctive word, so that a small tokenizer can keep it whole.

Lower levels use a prefix of each list.
"""

FILES = (
    *("apple", "plum", "pear", "lemon", "cherry", "mango", "melon", "grape", "peach", "fig", "banana", "kiwi"),
    *("carrot", "onion", "pepper", "radish", "celery", "spinach", "pumpkin", "leek", "garlic", "turnip", "bean", "pea"),
)
CONTENTS = (
    *("red", "blue", "green", "black", "white", "purple", "orange", "brown", "yellow", "pink", "gray", "gold"),
    *("silver", "copper", "iron", "amber", "ivory", "coral", "jade", "ruby", "pearl", "onyx", "topaz", "cobalt"),
)
FOLDERS = ("box", "bag", "shelf", "chest", "drawer", "basket", "closet", "cabin", "attic", "cellar", "garage", "shed")
