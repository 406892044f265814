"""Kinds of failed cooperation, after the CooperBench paper (arXiv 2601.13295): three causes, ten symptoms.

The definitions are our own words. They are part of the judge's prompt, so changing them changes `PROMPT_VERSION`.
"""

from __future__ import annotations

CAUSES = {
    "expectation": "An agent was told, or could have known, what its colleague does, and worked as if it were not so.",
    "communication": "What had to be said was not said, not in time, not clearly, or a question stayed without answer.",
    "commitment": "An agent gave its word, and its work does not keep it or cannot be checked against it.",
    "none": "Cooperation is not what failed: an agent's own work is wrong by itself.",
}

SYMPTOMS = {
    "work_overlap": "Both build the same thing, or change the same place, although one of them was enough.",
    "divergent_architecture": "Both designs work alone but do not fit together: names, signatures, data, places.",
    "repetition": "The same is said again and again; nothing new is decided by it.",
    "unresponsiveness": "A direct question or request gets no answer, or one that passes it by.",
    "unverifiable_claim": "Something is reported as done or agreed that the colleague cannot check, and it is not so.",
    "broken_commitment": "What was promised about files, names or behaviour is not in the patch, or the contrary is.",
    "dependency_access": "Work relies on code of the colleague that is not there, or not under that name.",
    "placeholder_misuse": "A stub or an agreed gap for the colleague is filled by the wrong one, twice, or by nobody.",
    "parameter_flow": "A value, parameter or default that both touch is passed on in a way that one does not expect.",
    "timing_dependency": "Another order would have worked: a message came too late, or work began before an agreement.",
}
