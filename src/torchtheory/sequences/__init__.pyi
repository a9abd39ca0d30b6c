# attention and transformers
from .attention.dot_product import self_attention as self_attention
from .attention.dot_product import linear_attention as linear_attention
from .attention.heads import MultiHeadAttention as MultiHeadAttention
from .attention.transformers import TransformerEncoder as TransformerEncoder
from .attention.transformers import Transformer as Transformer
from .attention.transformers import LanguageModel as LanguageModel
from .attention.vision import VisionTransformer as VisionTransformer
from .attention.positions import sinusoidal_encoding as sinusoidal_encoding

# what attention looks at
from .attention.maps import attention_maps as attention_maps
from .attention.watching import watch_attention as watch_attention
from .attention.causality import measure_causality as measure_causality
from .attention.cost import cost_model as cost_model

# recurrent networks
from .recurrent.networks import Recurrent as Recurrent
from .recurrent.networks import Bidirectional as Bidirectional
from .recurrent.cells import ElmanCell as ElmanCell
from .recurrent.cells import LSTMCell as LSTMCell
from .recurrent.cells import GRUCell as GRUCell
from .recurrent.minimal import MinGRU as MinGRU
from .recurrent.minimal import MinLSTM as MinLSTM
from .recurrent.lru import LRU as LRU
from .recurrent.sequence_to_sequence import Seq2Seq as Seq2Seq

# gradients through time and scans
from .recurrent.gradients import recurrent_gradients as recurrent_gradients
from .recurrent.scans import associative_scan as associative_scan
from .recurrent.linear_scans import linear_scan as linear_scan

# language
from .language.byte_pairs import BytePairEncoding as BytePairEncoding
from .language.wordpiece import WordPiece as WordPiece
from .language.unigram import Unigram as Unigram
from .language.bert import Bert as Bert
from .language.decoding import generate as generate
from .language.search import beam_search as beam_search

# topics
from . import attention as attention
from . import recurrent as recurrent
from . import language as language
