# pictures
from .pictures import heatmaps as heatmaps
from .pictures import colored_words as colored_words
from .pictures import words_html as words_html
from .pictures import bars as bars
from .pictures import picture as picture

# pages
from .page import explanations_page as explanations_page
from .page import explanations_fragment as explanations_fragment
from .one_explanation import explanation_fragment as explanation_fragment

# numbers with marks
from .marked_numbers import marked_numbers as marked_numbers
from .marked_numbers import MarkedNumbers as MarkedNumbers
from .marked_numbers import SequenceReader as SequenceReader
from .marked_numbers import relevance_correlations as relevance_correlations
