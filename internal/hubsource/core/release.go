package core

// release is where telling the broker stands that a cluster is not served any
// more.
type release struct {
	// must: it is to be told. sending: it is being told, or was and nobody knows
	// the answer; then the subscription ends.
	must, sending bool
	// inFlight counts publishes of works of the cluster on this subscription.
	// open is the last subscription on which nobody knows what became of one: it
	// may come after a release, and be left behind there.
	inFlight, open int
	// unknownObjects counts those of them whose work is forgotten: what the hub lacks is not
	// known before they are answered.
	unknownObjects int
	retry          retry
}

// pending reports whether the broker is still to forget what it has of the
// cluster.
func (r *release) pending() bool { return r.must || r.sending }

func (r *release) begin() { r.inFlight++ }

// noteUnknown takes it that the work of a publish is forgotten.
func (r *release) noteUnknown() { r.unknownObjects++ }

// strayed takes the answer to such a one.
func (r *release) strayed() { r.unknownObjects-- }

// finish takes the answer to a publish, open where there was none.
func (r *release) finish(sub int, open bool) {
	r.inFlight--
	if open {
		r.open = sub
	}
}

// releases tells the broker of clusters that are not served any more. It does so
// first of all on a subscription, and again on each as long as such a cluster has
// works: an earlier process may have served it.
type releases struct {
	f       *workIndex
	cursor  *cursor
	epochs  *hubEpochs
	compare *clusterSync
}

// subscribe begins anew with a subscription.
func (s *releases) subscribe(cl *cluster) {
	s.set(cl, !cl.selected)
	cl.release = release{must: cl.release.must}
}

// set has a cluster released, or not.
func (s *releases) set(cl *cluster, must bool) {
	if cl.release.must != must {
		cl.release.must = must
		s.cursor.releases(must)
	}
}

// next decides about a release. It goes out behind all that was published of the
// cluster's works, and not while the broker is told of comparisons, so that those
// are about the clusters as they are then.
func (s *releases) next(cl *cluster) *todo {
	r := &cl.release
	switch {
	case !r.must || r.sending || r.inFlight > 0 || s.compare.isReporting() || !s.f.connected:
		return nil
	case s.f.ocmBroker: // it keeps nothing
		s.released(cl)
		return nil
	case r.open == s.f.sub:
		s.f.endSubscription()
		return nil
	case !s.f.ready(cl.key(), &r.retry):
		return nil
	}
	r.sending = true
	return s.f.ofCluster(cl, Release{Cluster: cl.name, Fence: s.f.nextOrder()}, func(r Result) { s.done(cl, r) })
}

func (s *releases) done(cl *cluster, r Result) {
	if isOpen(r.Err) {
		// It may be carried out yet, and would drop what is published from now on where
		// the cluster is served again.
		s.f.endSubscription()
		return
	}
	cl.release.sending = false
	if s.f.brokerFailed(cl.key(), &cl.release.retry, r.Err) {
		if !cl.release.must { // it is served again, and keeps what the broker has of it
			s.goOn(cl)
		}
		return
	}
	s.f.ends.reset()
	s.released(cl)
}

// released ends the release of a cluster; it may be served again by now.
func (s *releases) released(cl *cluster) {
	s.set(cl, false)
	if !cl.selected {
		s.epochs.clearSuspicion(cl.name)
	}
	s.cursor.resume()
	s.goOn(cl)
	s.compare.tidy(cl)
}

// goOn goes on with what waited for the end of a release.
func (s *releases) goOn(cl *cluster) {
	if cl.selected {
		s.compare.enter(cl)
	}
	for _, w := range cl.works {
		s.f.wake(BrokerQueue, w.key(), 0)
	}
}
