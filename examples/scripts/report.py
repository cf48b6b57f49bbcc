"""Sums up the table that came as `input_data`."""

import csv
import os

with open(os.environ["TOOLBUS_INPUT_FILE"], encoding="utf-8") as table:
    visits = {row["city"]: int(row["visits"]) for row in csv.DictReader(table)}
print(f"{sum(visits.values())} visits, most of them to {max(visits, key=visits.get)}")
