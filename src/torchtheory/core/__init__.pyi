# claims
from .claim import Claim as Claim
from .claim import Verdict as Verdict
from .claim import claim as claim
from .claim import not_applicable as not_applicable

# statements
from .statement import Statement as Statement
from .statement import CounterExample as CounterExample

# records
from .record import Record as Record
from .record import Table as Table
from .quantity import Quantity as Quantity

# intervals
from .intervals import Interval as Interval
from .intervals import mean_interval as mean_interval
from .intervals import clopper_pearson as clopper_pearson
from .intervals import quantile_interval as quantile_interval
from .intervals import median_interval as median_interval
from .intervals import fit_slope as fit_slope
from .intervals import hoeffding_radius as hoeffding_radius

# randomness
from .random import as_generator as as_generator

# the catalogue of results
from .catalogue import entries as entries
from .catalogue import sources as sources
from .catalogue import entry as entry
from .catalogue import errata as errata
from .catalogue import search as search

# many tasks side by side
from .parallel import run_tasks as run_tasks

# errors
from .errors import TorchTheoryError as TorchTheoryError
from .errors import InvalidInput as InvalidInput
from .errors import InvalidType as InvalidType
from .errors import UnsupportedModel as UnsupportedModel
from .errors import FileProblem as FileProblem
from .errors import NotConverged as NotConverged
from .errors import OutOfTime as OutOfTime

# modules
from . import catalogue as catalogue
from . import checks as checks
from . import errors as errors
