"""The words of generated catalogues: each one distinctive word, so that a small tokenizer can keep it whole.

Lower levels use a prefix of each list. Ids are numbers of three digits, which are the same in upper and lower case and
are no prices.
"""

THINGS = (
    *("lamp", "mug", "chair", "shirt", "towel", "clock", "basket", "pillow", "kettle", "mirror", "jacket", "candle"),
    *("wallet", "bottle", "blanket", "vase", "backpack", "umbrella", "teapot", "scarf", "bench", "helmet", "ladder"),
    *("tripod",),
)
COLOURS = ("red", "blue", "green", "white", "black", "pink", "orange", "purple", "silver", "brown", "yellow", "violet")
SIZES = ("small", "medium", "large")
FINISHES = ("matte", "glossy", "rustic", "brushed")
STYLES = ("modern", "vintage", "classic", "rural", "urban", "nordic")
IDS = tuple(str(number) for number in range(101, 161))
