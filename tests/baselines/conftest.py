from tests.finetune.conftest import beir, finetune, groups, scores, start

__all__ = ["beir", "finetune", "groups", "scores", "start"]
