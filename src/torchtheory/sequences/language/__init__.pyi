# tokenizers
from .text import Tokenizer as Tokenizer
from .byte_pairs import BytePairEncoding as BytePairEncoding
from .wordpiece import WordPiece as WordPiece
from .unigram import Unigram as Unigram
from .words import WordTokenizer as WordTokenizer
from .words import CharacterTokenizer as CharacterTokenizer
from .text import bytes_per_token as bytes_per_token
from .token_tables import token_table as token_table
from .token_tables import gpt2_token_table as gpt2_token_table

# text
from .text import normalize as normalize
from .text import split_words as split_words

# decoding
from .decoding import generate as generate
from .search import beam_search as beam_search
from .search import exhaustive_search as exhaustive_search
from .decoding import sequence_log_probability as sequence_log_probability
from .filters import tempered as tempered
from .filters import keep_top_k as keep_top_k
from .filters import keep_top_p as keep_top_p

# BERT
from .bert import Bert as Bert
from .bert_inputs import bert_inputs as bert_inputs
from .bert_inputs import mask_tokens as mask_tokens
from .bert_inputs import next_sentence_pairs as next_sentence_pairs
from .bert import pretraining_loss as pretraining_loss
from .bert import FineTuned as FineTuned
from .bert import best_span as best_span

# sources with a known entropy
from .sources import MarkovText as MarkovText
from .sources import python_manual as python_manual
from .listed import ListedModel as ListedModel
