"""Balance of experts computed by hand, for a plain transformers model in one process with the whole batch of a step."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.spec.recipe import Recipe


class DenseBalance:
    """Counts and balances the routers of a transformers model, changing its computation to fit the `Recipe`."""

    def __init__(self, model: torch.nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        self._scores: dict[Any, Tensor] = {}
        self._biases: dict[Any, Tensor] = {}
        routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
        for router in routers if recipe.balance_loss != "none" else []:
            self._biases[router] = torch.zeros(recipe.model.num_experts)
            router.forward = self._route(router)

    def _route(self, router: Any) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
        def route(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scores = F.linear(hidden.flatten(0, -2), router.weight, getattr(router, "bias", None))
            self._scores[router] = scores
            probabilities = scores.softmax(dim=-1)
            chosen = self._chosen(router, probabilities)
            weights = probabilities.gather(1, chosen)
            if self._recipe.model.norm_topk_prob or self._recipe.model.architecture in ("mixtral", "gpt_oss"):
                weights = weights / weights.sum(dim=-1, keepdim=True)
            return scores, weights, chosen

        return route

    def _chosen(self, router: Any, probabilities: Tensor) -> Tensor:
        choice = probabilities.detach() + self._biases[router]
        return choice.argsort(dim=-1, descending=True)[:, : self._recipe.model.experts_per_token]

    def _counts(self, router: Any) -> Tensor:
        chosen = self._chosen(router, self._scores[router].softmax(dim=-1))
        return torch.bincount(chosen.flatten(), minlength=self._recipe.model.num_experts).float()

    def loss(self) -> Tensor | float:
        """Returns the last pass's balance loss: the mean over blocks of E x the sum over experts of share x
        probability.
        """
        if self._recipe.balance_loss != "aux":
            return 0.0
        of_blocks = [
            len(scores[0]) * (self._counts(router) / len(scores) * scores.softmax(dim=-1).mean(dim=0)).sum()
            for router, scores in self._scores.items()
        ]
        return self._recipe.rate_of_balance * sum(of_blocks) / len(of_blocks)

    def step(self) -> None:
        """Updates the biases from the tokens of the last pass."""
        if self._recipe.balance_loss == "bias":
            for router in self._scores:
                counts = self._counts(router)
                self._biases[router] += self._recipe.rate_of_balance * (counts < counts.mean()).float()
                self._biases[router] -= self._recipe.rate_of_balance * (counts > counts.mean()).float()
