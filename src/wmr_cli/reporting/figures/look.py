"""What a user chooses about all figures: their width, and whether they have a heading."""

from dataclasses import dataclass

# width in inches of the text on a page
TEXT_WIDTH = 7.2
# widths in inches of one and of both columns of a two-column paper
PAPER_WIDTHS = {"single": 3.25, "double": 6.75}
# a narrower panel has no room for its tick labels
MIN_PANEL_WIDTH = 2.2
MIN_SMALL_PANEL_WIDTH = 1.6
ROWS_PER_PAGE = 4


@dataclass(frozen=True)
class FigureLook:
    """The width of every figure in inches, None for the usual ones, and whether it has a heading.

    Letters have the same size at every width.
    """

    chosen_width: float | None = None
    has_heading: bool = True

    @property
    def width(self) -> float:
        return self.chosen_width or TEXT_WIDTH

    @property
    def columns(self) -> int:
        """The number of panels that fit side by side."""
        return max(1, int(self.width / MIN_PANEL_WIDTH))

    @property
    def small_columns(self) -> int:
        """The number of panels with few tick labels that fit side by side."""
        return max(1, int(self.width / MIN_SMALL_PANEL_WIDTH))

    @property
    def panels_per_page(self) -> int:
        return ROWS_PER_PAGE * self.columns

    def columns_of(self, panels: int) -> int:
        """Return the columns for rows of this many panels: below each other if they do not fit."""
        return panels if panels <= self.columns else 1

    def narrow_width(self, width: float) -> float:
        """Return the width of a figure that does not need all of it."""
        return self.chosen_width or width


USUAL_LOOK = FigureLook()
