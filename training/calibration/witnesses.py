"""Which witnesses of familiarity to leave out: only those that OOD images of the user's own show to do harm.

A witness is a score that familiarity is combined from. Without OOD images all of them count: none is known to be worse
than the others. With OOD images, one is dropped only if the combined familiarity catches more of them without it, by
more than chance explains. Caught is what is refused where 10 % of own images are: the budget of the default policy. The
AUROC would judge by thresholds that nobody sets.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from service.model.scores import Floats, ScoreName
from training.metrics.detection import bootstrap_interval

# The combined familiarity [N] of images from the scores of the named witnesses; higher = more familiar.
Combine = Callable[[Mapping[ScoreName, Floats], Sequence[ScoreName]], Floats]
RESAMPLES = 200
REFUSED = 0.10  # of own images


def dropped_witnesses(
    own: Mapping[ScoreName, Floats], ood: Mapping[ScoreName, Floats], combine: Combine
) -> list[ScoreName]:
    """The witnesses to leave out, in the order in which they are dropped; at least one always stays.

    `own` and `ood` hold the scores of each witness on calibration images and on the user's OOD images. One witness at a
    time is dropped, the most harmful first, because two that repeat each other look harmless one by one.
    """
    if set(own) != set(ood) or not own:
        raise ValueError(f"witnesses are {sorted(own)} and {sorted(ood)}: expected the same ones, at least one")
    staying = list(own)
    dropped: list[ScoreName] = []
    while len(staying) > 1:
        gains = {name: _gain_without(name, staying, own, ood, combine) for name in staying}
        worst = max(gains, key=lambda name: gains[name])
        if gains[worst] <= 0:
            break
        staying.remove(worst)
        dropped.append(worst)
    return dropped


def _gain_without(
    name: ScoreName,
    staying: Sequence[ScoreName],
    own: Mapping[ScoreName, Floats],
    ood: Mapping[ScoreName, Floats],
    combine: Combine,
) -> float:
    """The lower end of the 95 % interval of what is caught more by leaving one witness out."""
    others = [other for other in staying if other != name]
    # Both columns of an image are resampled together: the difference varies less than each share does.
    accept, refuse = (np.stack([combine(scores, others), combine(scores, staying)], axis=1) for scores in (own, ood))
    low, _ = bootstrap_interval(
        lambda a, r: _caught(a[:, 0], r[:, 0]) - _caught(a[:, 1], r[:, 1]), accept, refuse, n=RESAMPLES
    )
    return low


def _caught(own: Floats, ood: Floats) -> float:
    return float(np.mean(ood <= np.quantile(own, REFUSED)))
