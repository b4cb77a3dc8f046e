"""The shop's pages as text: what WebShop's text mode shows of its HTML, piece by piece.

Pieces that are nothing but white space are shown empty; if there is a line break in them they are not shown at all,
which is what the HTML parser behind WebShop does.
"""

from collections.abc import Iterable, Sequence

from envs.webshop.catalogue import PAGE_SIZE, Product

SEPARATOR = " [SEP] "
SEARCH = "search"
BACK = "back to search"
PREVIOUS = "< prev"
NEXT = "next >"
BUY = "buy now"
SUB_PAGES = ("description", "features", "reviews")
ITEM_BUTTONS = (BACK, PREVIOUS, *SUB_PAGES, BUY)
_BLANK = " \n\t\f\r"
_RATING = "Rating: N.A."


def shown(texts: Iterable[str]) -> str:
    """The visible pieces of a page, joined."""
    return SEPARATOR.join(text.strip() for text in texts if _is_shown(text))


def _is_shown(text: str) -> bool:
    return text != "" and not ("\n" in text and not text.strip(_BLANK))


def home(instruction: str) -> str:
    return shown(("WebShop", "Instruction:", instruction, "Search"))


def below(instruction: str, body: str) -> str:
    """Any other page: its body below the instruction."""
    head = shown(("Instruction:", instruction, "Back to Search"))
    return f"{head}{SEPARATOR}{body}"


def results(hits: Sequence[Product], page: int) -> str:
    """One page of what a search found. Pages are counted from 1, and there is always a next one."""
    texts = [f"Page {page} (Total results: {len(hits)})", *(("< Prev",) if page > 1 else ()), "Next >"]
    for product in on_page(hits, page):
        texts += (product.asin, product.title, product.price_tag)
    return shown(texts)


def result_buttons(hits: Sequence[Product], page: int) -> tuple[str, ...]:
    buttons = (BACK, PREVIOUS, NEXT) if page > 1 else (BACK, NEXT)
    return (*buttons, *dict.fromkeys(product.asin.lower() for product in on_page(hits, page)))


def on_page(hits: Sequence[Product], page: int) -> Sequence[Product]:
    return hits[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


def item(product: Product) -> str:
    texts = ["< Prev"]
    for name, values in product.options.items():
        texts += (name, *values)
    texts += (product.title, f"Price: {product.price_tag}", _RATING)
    return shown((*texts, "Description", "Features", "Reviews", "Buy Now"))


def item_buttons(product: Product) -> dict[str, str | None]:
    """Every button of an item's page; an option's value with the name of its option. Of options that share a value,
    the last one has it."""
    buttons: dict[str, str | None] = dict.fromkeys(ITEM_BUTTONS)
    for name, values in product.options.items():
        buttons |= dict.fromkeys(values, name.lower())
    return buttons


def sub_page(product: Product, name: str) -> str:
    texts = {
        "description": (product.description,),
        "features": tuple(f" {bullet}" for bullet in product.bullets),
        "reviews": ("No reviews found",),
    }
    return shown(("< Prev", *texts[name]))
