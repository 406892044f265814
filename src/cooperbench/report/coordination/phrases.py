"""The words by which agents say what they do: data for `claims`, no logic."""

from __future__ import annotations

_ADDING = "add:adding:added create:creating:created introduce:introducing:introduced define:defining:defined"
_WRITING = "implement:implementing:implemented write:writing:wrote:written insert:inserting:inserted"
_CHANGING = (
    "change:changing:changed modify:modifying:modified edit:editing:edited update:updating:updated "
    "touch:touching:touched alter:altering:altered adjust:adjusting:adjusted tweak:tweaking:tweaked "
    "extend:extending:extended refactor:refactoring:refactored rewrite:rewriting:rewrote:rewritten "
    "rename:renaming:renamed replace:replacing:replaced fix:fixing:fixed patch:patching:patched "
    "take:taking:took:taken own:owning:owned handle:handling:handled"
)
_REMOVING = "remove:removing:removed delete:deleting:deleted move:moving:moved"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _forms(groups: str, place: int) -> set[str]:
    return {
        form for verb in groups.split() for form in verb.split(":")[place : place + 1 if place < 2 else None]
    }


ADD_VERBS = frozenset(form for verb in f"{_ADDING} {_WRITING}".split() for form in verb.split(":"))
REMOVE_VERBS = frozenset(form for verb in _REMOVING.split() for form in verb.split(":"))
_EVERY = f"{_ADDING} {_WRITING} {_CHANGING} {_REMOVING}"
BASE_VERBS = frozenset(_forms(_EVERY, 0))
ING_VERBS = frozenset(_forms(_EVERY, 1))
PAST_VERBS = frozenset(_forms(_EVERY, 2))
VERB_PHRASES = {
    **dict.fromkeys(("work on", "work in"), "base"),
    **dict.fromkeys(("working on", "working in"), "ing"),
    **dict.fromkeys(("worked on", "worked in"), "past"),
    "make changes": "base",
    "making changes": "ing",
    "made changes": "past",
    "make edits": "base",
    "making edits": "ing",
    "made edits": "past",
}

ADVERBS = (
    "only|just|also|now|first|then|mainly|primarily|therefore|still|simply|currently|already|actually|next"
)

FILLERS = words(
    "the a an this these those my both all new existing file files function functions func method methods "
    "class classes struct structs trait interface enum type types module modules helper helpers code line "
    "lines test tests following private public small single optional named called entire whole any "
    "anything directly namely also only just property implementation logic parameter parameters argument "
    "option flag field constant decorator"
)
"""Words that may stand between a verb and what it is about."""

PREPOSITIONS = words("in into inside within on onto of to at")

STOPS = words(
    "that which who whose so because since using use uses via with by like instead rather except but "
    "while whereas where when whenever once until till after before based similar for as without you your "
    "yours you're you'll you've we we'll our us they their them he she it its if unless not won't don't "
    "however then i i'll i'm i've calling calls depending accepting returning taking matching following "
    "according between over against through per mirroring reusing other else outside beyond besides apart "
    "than order top case nothing no none neither nor depends call let keep leave leaving unlike versus vs "
    "see e.g i.e"
)
"""Words after which a clause is about something else."""

POSITIONS = words("near next above below around alongside beside under behind")
"""Words before a name that only says where something goes."""

HEDGES = words(
    "if unless might may could would should maybe perhaps probably possibly likely suppose assuming "
    "whether unsure alternatively otherwise propose suggest"
)
"""Words that make a sentence a thought rather than a word given."""

QUALIFIERS = words(
    "except besides beyond apart other than only yet now anymore further again until unless while much "
    "unnecessarily significantly more first before outside"
)
"""Words that limit a "not": what is promised then cannot be told from a patch."""

AFTER_NOT = words(
    "and or nor in inside within of at either itself file files function method class struct module directly"
)
"""Words that may follow what a "not" is about; before others it is only about a part of it."""
