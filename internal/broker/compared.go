package broker

// concluded takes over what a source said of its comparison, and tells the
// agents whom it concerns.
func (b *Broker) concluded(o outcome) error {
	changed, ok := b.comparisons.apply(o)
	if !ok {
		return invalid("data", "more clusters are named as compared than a source may have", "set all_clusters instead of naming them")
	}
	b.hub.recheck(o.dataType, changed)
	return nil
}

// revoke ends that a source counts as having compared what it owns on a
// cluster: something of it left the store without the source's doing.
func (b *Broker) revoke(p place, source string) {
	if b.comparisons.revoke(ownership{p.dataType, source}, p.cluster) {
		b.hub.recheck(p.dataType, changes{clusters: []string{p.cluster}})
	}
}
