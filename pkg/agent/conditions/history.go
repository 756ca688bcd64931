package conditions

import workv1 "open-cluster-management.io/api/work/v1"

// history finds the previous entry of a manifest by its full identity. If it moved within the spec, history
// finds it by its identity without the index, unless that is ambiguous.
type history struct {
	entries []workv1.ManifestCondition
	exact   map[workv1.ManifestResourceMeta]int
	moved   map[workv1.ManifestResourceMeta]int // -1: ambiguous
}

func indexHistory(entries []workv1.ManifestCondition) history {
	h := history{entries: entries, exact: make(map[workv1.ManifestResourceMeta]int, len(entries)), moved: make(map[workv1.ManifestResourceMeta]int, len(entries))}
	for i, e := range entries {
		h.exact[e.ResourceMeta] = i
		key := withoutOrdinal(e.ResourceMeta)
		if _, twice := h.moved[key]; twice {
			i = -1
		}
		h.moved[key] = i
	}
	return h
}

func (h history) find(m workv1.ManifestResourceMeta) *workv1.ManifestCondition {
	if i, ok := h.exact[m]; ok {
		return &h.entries[i]
	}
	if i, ok := h.moved[withoutOrdinal(m)]; ok && i >= 0 {
		return &h.entries[i]
	}
	return nil
}

func withoutOrdinal(m workv1.ManifestResourceMeta) workv1.ManifestResourceMeta {
	m.Ordinal = 0
	return m
}
