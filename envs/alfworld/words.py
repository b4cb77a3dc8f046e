"""The furniture of generated games. Names are ALFWorld's, so that generated and published games share their words."""

from envs.alfworld.game import State

_WASHABLE = ("cleanable",)
_FOOD = ("cleanable", "heatable", "coolable")
_PLAIN: tuple[str, ...] = ()

# Objects by type (without the suffix), with what can be done to them beyond picking them up. Lower levels use a
# prefix: every name is one distinctive word, so that a small tokenizer can keep it whole.
THINGS: dict[str, tuple[str, ...]] = {
    **{"Mug": _FOOD, "Book": _PLAIN, "Apple": _FOOD, "Pen": _PLAIN, "Plate": _FOOD, "Vase": _PLAIN},
    **{"Egg": _FOOD, "Watch": _PLAIN, "Cup": _FOOD, "Candle": _PLAIN, "Potato": _FOOD, "Pillow": _PLAIN},
    **{"Bread": ("heatable", "coolable"), "Laptop": _PLAIN, "Spoon": _WASHABLE, "CD": _PLAIN, "Tomato": _FOOD},
    **{"Statue": _PLAIN, "Bowl": ("cleanable", "coolable"), "Newspaper": _PLAIN, "Fork": _WASHABLE, "Box": _PLAIN},
    **{"Lettuce": ("cleanable", "coolable"), "Pencil": _PLAIN},
}
# Receptacles that are no appliance, with whether they have to be opened. Lower levels use a prefix.
RECEPTACLES: dict[str, bool] = {
    **{"Desk": False, "Shelf": False, "Bed": False, "Sofa": False, "Dresser": False, "Cart": False},
    **{"Ottoman": False, "ArmChair": False, "Drawer": True, "Cabinet": True, "SideTable": False, "Safe": True},
}
# The appliance for each state: its type, whether it has to be opened, and the id that ALFWorld's names come from.
APPLIANCES: dict[State, tuple[str, bool, str]] = {
    "clean": ("SinkBasin", False, "Sink_bar_{}_bar_SinkBasin"),
    "hot": ("Microwave", True, "Microwave_bar_{}"),
    "cool": ("Fridge", True, "Fridge_bar_{}"),
}
LAMP = "DeskLamp"
