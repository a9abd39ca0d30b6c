# pages
from .html import run_page as run_page
from .html import index_page as index_page
from .html import audit_page as audit_page

# notebooks
from .html import run_fragment as run_fragment
from .html import audit_fragment as audit_fragment

# text
from .terminal import audit_text as audit_text
from .markdown import audit_markdown as audit_markdown
from .terminal import print_run as print_run
from .terminal import print_runs as print_runs
from .terminal import print_audit as print_audit

# continuous integration
from .junit import junit_text as junit_text
from .sarif import sarif_text as sarif_text

# formulas and numbers
from .mathml import formula as formula
from .mathml import prose as prose
from .plain_math import plain as plain
from .plain_math import plain_prose as plain_prose
from .numbers import number_text as number_text
from .numbers import number_words as number_words
from .numbers import duration as duration
