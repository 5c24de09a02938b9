"""Six tasks by which nothing was ever chosen, as different from the others as they could be made.

They are for the judgement of what was chosen elsewhere; whoever tunes on them takes that away.
"""

from benchmarks.tasks.unseen.cuts import Cuts
from benchmarks.tasks.unseen.dilated import Dilated
from benchmarks.tasks.unseen.fine_tuning import FineTuning
from benchmarks.tasks.unseen.patches import Patches
from benchmarks.tasks.unseen.ratings import Ratings
from benchmarks.tasks.unseen.vae import VAE

TASKS = (Patches, Dilated, VAE, Ratings, Cuts, FineTuning)

__all__ = ["TASKS"]
