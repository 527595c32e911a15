from pathlib import Path

from agentdiff.engine.families.table import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_says_of_each_family_whether_it_was_verified():
    rows = [line.split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    said = {row[0].strip("|` "): row[-1].strip(" |") for row in rows if len(row) == 4}
    for family in FAMILIES:
        assert said[family.name] == ("verified" if family.verified else "mapped")
