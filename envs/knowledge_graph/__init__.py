"""Multi-hop questions over a hidden knowledge graph: generated graphs, or a real slice of Freebase."""

from envs.knowledge_graph.tasks import KnowledgeGraphFamily, family

__all__ = ["KnowledgeGraphFamily", "family"]
