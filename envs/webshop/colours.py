"""The colour words that WebShop's reward knows; two options of one colour count as equal."""

# In alphabetical order, which decides what "dark blue" is: the first of these that the text contains.
COLOURS = (
    *("alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush"),
    *("bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal"),
    *("cheetah", "chestnut", "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry"),
    *("cream", "crystal", "dark", "denim", "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite"),
    *("grape", "graphite", "grass", "gray", "green", "grey", "heather", "indigo", "ivory", "ivy", "khaki"),
    *("lavender", "lemon", "leopard", "light", "lilac", "lime", "magenta", "maroon", "mauve", "merlot"),
    *("midnight", "mint", "mocha", "multicolor", "mushroom", "mustard", "natural", "navy", "nude", "olive"),
    *("orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal", "rust", "sand"),
    *("sapphire", "seashell", "silver", "skull", "slate", "steel", "stone", "stonewash", "sunflower", "tan"),
    *("taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow"),
)


def normalised(text: str) -> str:
    """The first colour word that stands anywhere in `text`, even inside a word; `text` itself if none does.

    >>> normalised("dark blue"), normalised("powdered"), normalised("x-large")
    ('blue', 'red', 'x-large')
    """
    return next((colour for colour in COLOURS if colour in text), text)
