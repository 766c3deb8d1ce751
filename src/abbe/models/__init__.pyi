# The public names and their types: `abbe._lazy` reads them, and imports each name on first use.
# None names its extra: `abbe doctor` asks some of them without it.

from ._carried import carried_config as carried_config
from ._export import (
    Export as Export,
    as_swapped as as_swapped,
    export as export,
    gguf_error as gguf_error,
    plan_path as plan_path,
    read_export as read_export,
)
from ._listening import (
    Consumer as Consumer,
    HeardCall as HeardCall,
    Listener as Listener,
)
from ._load import (
    LoadedModel as LoadedModel,
    built as built,
    configuration as configuration,
    llama_configuration as llama_configuration,
    load as load,
    wrap as wrap,
)
from ._load.device import (
    DeviceLike as DeviceLike,
    DeviceMap as DeviceMap,
    DtypeLike as DtypeLike,
    as_device as as_device,
    as_dtype as as_dtype,
    free_memory as free_memory,
    megabytes as megabytes,
)
from ._load.sources import (
    EMBEDDED_FILES as EMBEDDED_FILES,
    PULLABLE as PULLABLE,
    cache_folder as cache_folder,
    embedded_about as embedded_about,
    embedded_folder as embedded_folder,
    is_pulled as is_pulled,
    pulled_facts as pulled_facts,
    pulled_folder as pulled_folder,
    quiet as quiet,
)
from ._named import (
    attention_names as attention_names,
    register_attention_names as register_attention_names,
)
from ._network import (
    Shape as Shape,
    evaluating as evaluating,
    input_device as input_device,
    logits_in_pieces as logits_in_pieces,
    shape_of as shape_of,
    unwrapped as unwrapped,
)
from ._own import (
    Loss as Loss,
    Run as Run,
    class_name as class_name,
)
from ._plan import (
    FILE_PREFIX as FILE_PREFIX,
    Plan as Plan,
    plan as plan,
    rules_in as rules_in,
)
from ._pull import pull as pull
from ._session.call import (
    AttentionCall as AttentionCall,
    HeadGroup as HeadGroup,
)
from ._session.selfcheck import (
    checked_logits as checked_logits,
    self_check_tolerance as self_check_tolerance,
)
from ._swap import (
    Swap as Swap,
    swap as swap,
)
from ._tap import (
    Tap as Tap,
    tap as tap,
)
from ._text import (
    Text as Text,
    Tokens as Tokens,
    Window as Window,
    Windows as Windows,
    read_text as read_text,
    read_tokens as read_tokens,
    special_tokens as special_tokens,
    token_texts as token_texts,
    windows as windows,
)
