# the trainer
from .trainer import fit as fit
from .history import History as History
from .history import Epoch as Epoch
from .early_stopping import EarlyStopping as EarlyStopping
from .state import Diverged as Diverged

# recipes for images
from .image_recipes import recipe as recipe
from .image_recipes import Recipe as Recipe
from .image_recipes import FlipAndCrop as FlipAndCrop
from .image_recipes import RandomAffineCrop as RandomAffineCrop

# checkpoints and seeds
from .checkpoint import save_checkpoint as save_checkpoint
from .checkpoint import load_checkpoint as load_checkpoint
from .seeds import derived_seed as derived_seed
from .seeds import epoch_order as epoch_order
