package intake

// maxReleased is how many releases of one subscription are remembered one by one.
const maxReleased = 1 << 12

// order is how far a source has come on one subscription, by the fencing tokens with which
// it numbers what it says of clusters. A call that it gave up may arrive behind a later one:
// handlers run at the same time, and proxies open connections of their own. Of the specs of
// one work the version tells which is the later. But
//
//   - a spec behind the release of its cluster would be left behind there,
//   - a release behind the specs of a cluster that is served again would drop them,
//   - a comparison behind either would count as one of what is so now.
//
// So a release divides earlier from later. What has no number, 0, counts as said when it
// arrives.
type order struct {
	// last is the highest number of a comparison or a release.
	last uint64
	// released are those of the last release of each cluster. Of the others nothing up to
	// forgotten counts.
	released  map[string]uint64
	forgotten uint64
}

// releasedAt returns the number up to which nothing counts that is about a cluster.
func (o *order) releasedAt(cluster string) uint64 {
	if n, ok := o.released[cluster]; ok {
		return n
	}
	return o.forgotten
}

// release takes note of a release; false: something later made it void.
func (o *order) release(cluster string, n uint64) bool {
	if n == 0 {
		return true
	}
	if _, known := o.released[cluster]; !known && len(o.released) >= maxReleased {
		clear(o.released)
		o.forgotten = o.last
	}
	if n <= o.releasedAt(cluster) {
		return false
	}
	if o.released == nil {
		o.released = map[string]uint64{}
	}
	o.released[cluster] = n
	o.last = max(o.last, n)
	return true
}

// compare takes note of a comparison; false: something later made it void.
func (o *order) compare(n uint64) bool {
	if n != 0 && n <= o.last {
		return false
	}
	o.last = max(o.last, n)
	return true
}
