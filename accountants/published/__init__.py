"""The sources' own formulas and searches, for comparison only; the first line of each says whether it is sound.

| module | contents |
|---|---|
| ``recycling`` | Jiang 2024 on budget recycling, mostly not sound |
| ``searches`` | the searches of Zhang 2024 and Jiang 2024, and the choice of Ma 2021 |
| ``shuffle`` | earlier bounds of shuffled reports, which are sound but weaker than ``accountants.shuffled`` |
"""
