# attention
from .attention.heads import MultiHeadAttention as MultiHeadAttention
from .attention.transformers import LanguageModel as LanguageModel

# recurrence
from .recurrent.cells import LSTMCell as LSTMCell
