# answering
from .relation_network import RelationNetwork as RelationNetwork
from .relation_network import RelationConfig as RelationConfig
from .answering import train_answers as train_answers
from .answering import answer_scores as answer_scores
from .answering import answer_accuracy as answer_accuracy
from .answering import accuracy_without_images as accuracy_without_images

# explaining
from .explaining import explain_answers as explain_answers
from .explaining import explain_answer as explain_answer
from .explaining import AnswerExplanation as AnswerExplanation
from .explaining import blurred as blurred

# over many questions
from .statistics import explain_questions as explain_questions
from .statistics import word_statistics as word_statistics
from .statistics import WordStatistics as WordStatistics
from .statistics import top_words as top_words
from .statistics import position_slopes as position_slopes
from .statistics import object_relevance as object_relevance
from .statistics import agreeing_objects as agreeing_objects
from .statistics import confident_examples as confident_examples

# pictures
from .pictures import plot_examples as plot_examples
from .pictures import example_pictures as example_pictures
