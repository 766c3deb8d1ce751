"""abbe: the resolution limit of attention. It measures real models, proves what can be proved, and lifts the limit."""

from ._declared import names as _declared_names
from ._errors import AbbeError as AbbeError
from ._import_hooks import register_harness_model as _register_harness_model
from ._import_hooks import register_model_type as _register_model_type
from ._import_hooks import when_imported as _when_imported
from ._lazy import later as _on_first_use

__version__ = "0.1.0"

_MODULES = (
    *("bounds", "entmax", "lab", "measures", "models", "normalizers", "results", "runs", "studies", "training"),
    *("views", "words"),
)
__getattr__, __dir__, __all__ = _on_first_use(__name__, __file__, _MODULES, _declared_names)

# Once both are imported, in any order, transformers accepts attn_implementation="abbe:entmax-1.5" and the like.
_when_imported("transformers.modeling_utils", lambda: __getattr__("models").register_attention_names())
# Exported folders that contain a plan have the model type "abbe".
_when_imported("transformers.models.auto.configuration_auto", _register_model_type)
# lm_eval --model abbe. Its table of models is filled by this module: an earlier entry would keep it empty.
_when_imported("lm_eval.models", _register_harness_model)
