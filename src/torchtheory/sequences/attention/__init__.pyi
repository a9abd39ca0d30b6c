# attention
from .dot_product import attention as attention
from .dot_product import self_attention as self_attention
from .dot_product import one_matrix_attention as one_matrix_attention
from .dot_product import linear_attention as linear_attention
from .dot_product import causal_mask as causal_mask
from .heads import MultiHeadAttention as MultiHeadAttention

# positions
from .positions import sinusoidal_encoding as sinusoidal_encoding
from .positions import SinusoidalPositions as SinusoidalPositions
from .positions import LearnedPositions as LearnedPositions
from .positions import shift_matrix as shift_matrix

# transformers
from .blocks import EncoderBlock as EncoderBlock
from .blocks import DecoderBlock as DecoderBlock
from .transformers import TransformerEncoder as TransformerEncoder
from .transformers import Transformer as Transformer
from .transformers import LanguageModel as LanguageModel
from .vision import VisionTransformer as VisionTransformer
from .vision import PatchEmbedding as PatchEmbedding
from .vision import image_patches as image_patches
from .cache import KeyValueCache as KeyValueCache

# what it looks at
from .maps import attention_maps as attention_maps
from .maps import attention_entropy as attention_entropy
from .maps import token_jacobian as token_jacobian
from .watching import watch_attention as watch_attention
from .causality import measure_causality as measure_causality

# what it costs
from .cost import cost_model as cost_model
from .cost import longest_chain as longest_chain
from .scaling import attention_scaling_study as attention_scaling_study
