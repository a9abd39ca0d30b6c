# what is explained
from .score import open_score as open_score
