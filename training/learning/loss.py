"""The confidence loss of DeVries & Taylor (2018), equations 2–5, in logit space, and the budget that steers λ.

With p = softmax(logits), c = σ(z) and y the class, a hint replaces p_y by p'_y = c·p_y + (1 − c), so
−log p'_y = −logaddexp(log σ(z) + log p_y, log σ(−z)): no product of small numbers, no clamp, and finite gradients at
any z.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ConfidenceLoss:
    """The parts of one step's loss, means over the batch."""

    total: Tensor
    task: Tensor
    confidence: Tensor


def confidence_loss(
    logits: Tensor,
    confidence_logit: Tensor,
    labels: Tensor,
    hinted: Tensor,
    weight: float | Tensor,
    hints_for: Literal["network", "branch"] = "network",
    class_weights: Tensor | None = None,
) -> ConfidenceLoss:
    """L = L_t + λ·L_c; `hinted` [N] says which samples may ask for hints (half of them, in the paper).

    With `hints_for="network"` it is the paper's loss: a hint lowers the loss of its image, so the classifier learns
    little from images that get large hints. With "branch" the classifier gets the gradient of plain cross-entropy on
    every image, and the branch that of the paper's loss: it sees the same p and the same hints. `class_weights` [K]
    weigh the images in L_t; the sum is divided by the number of images, not by that of their weights, so that the mean
    over the batches of several processes is that of one. L_c stays the mean that the budget is about.
    """
    logits, confidence_logit = logits.float(), confidence_logit.float()  # also under automatic mixed precision
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    log_c, log_not_c = F.logsigmoid(confidence_logit), F.logsigmoid(-confidence_logit)
    if hints_for == "network":
        with_hint = torch.logaddexp(log_c + log_p, log_not_c)
        gained = torch.where(hinted, with_hint, log_p)
    else:
        with_hint = torch.logaddexp(log_c + log_p.detach(), log_not_c)
        gained = log_p + torch.where(hinted, with_hint, 0.0)
    task = -(gained if class_weights is None else class_weights[labels] * gained).mean()
    confidence = -log_c.mean()
    return ConfidenceLoss(task + weight * confidence, task, confidence)


class BudgetController:
    """Moves λ after each step so that L_c tends towards the budget β.

    "sign" is the published rule: a fixed relative step up or down. "proportional" moves log λ by at most
    speed/total_steps a step, in proportion to the relative error, so that a run of 1,000 steps and one of 100,000 pass
    through the same λ at the same fraction of training, and λ settles instead of swinging.
    """

    LOWEST, HIGHEST = 1e-4, 1e2  # far outside what training reaches; keeps a broken run finite
    FASTEST = 0.05  # of log λ a step: a run of a few hundred steps must not jump

    def __init__(
        self,
        budget: float,
        initial: float,
        total_steps: int,
        rule: Literal["proportional", "sign"] = "proportional",
        speed: float = 20.0,
        relative_step: float = 0.01,
    ) -> None:
        self.budget, self.weight, self.rule = budget, initial, rule
        self.rate = min(self.FASTEST, speed / total_steps)
        self.relative_step = relative_step

    def update(self, confidence_loss: float) -> None:
        """Moves λ once, by the L_c of the last step (over all ranks)."""
        if self.rule == "sign":
            if confidence_loss > self.budget:
                self.weight /= 1 - self.relative_step
            elif confidence_loss < self.budget:
                self.weight /= 1 + self.relative_step
        else:
            error = (confidence_loss - self.budget) / self.budget
            self.weight *= math.exp(self.rate * max(-1.0, min(1.0, error)))
        self.weight = max(self.LOWEST, min(self.HIGHEST, self.weight))
