package core

// release is the progress of the release of a cluster that is no longer served.
type release struct {
	// must: the release is to be sent. sending: it is in flight, or its outcome is unknown; then the subscription
	// ends.
	must, sending bool
	// inFlight counts publishes of works of the cluster on this subscription. open is the last subscription with a
	// publish of unknown outcome: it may arrive after a release, and its record would stay.
	inFlight, open int
	// unknownObjects counts the publishes in flight whose work is forgotten. Until they are answered, it is unknown
	// which records have no work.
	unknownObjects int
	retry          retry
}

// pending reports whether the broker still has to drop its records of the cluster.
func (r *release) pending() bool { return r.must || r.sending }

func (r *release) begin() { r.inFlight++ }

// noteUnknown counts a publish in flight whose work is forgotten.
func (r *release) noteUnknown() { r.unknownObjects++ }

// noteUnknownAnswered counts the answer to such a publish.
func (r *release) noteUnknownAnswered() { r.unknownObjects-- }

// finish counts the answer to a publish; open: its outcome is unknown.
func (r *release) finish(sub int, open bool) {
	r.inFlight--
	if open {
		r.open = sub
	}
}

// releases sends the releases of clusters that are no longer served. They go out first on a subscription. While
// such a cluster has works they are repeated on each subscription: an earlier process may have served it.
type releases struct {
	f       *workIndex
	cursor  *cursor
	epochs  *hubEpochs
	compare *clusterSync
}

// subscribe resets the release for a new subscription.
func (s *releases) subscribe(cl *cluster) {
	s.set(cl, !cl.selected)
	cl.release = release{must: cl.release.must}
}

// set sets whether a cluster must be released, and keeps the count.
func (s *releases) set(cl *cluster, must bool) {
	if cl.release.must != must {
		cl.release.must = must
		s.cursor.releases(must)
	}
}

// next decides the next step of a release. It goes out after all publishes of the cluster's works. It also
// waits for a sync report in flight, because that report must not describe a released cluster.
func (s *releases) next(cl *cluster) *todo {
	r := &cl.release
	switch {
	case !r.must || r.sending || r.inFlight > 0 || s.compare.isReporting() || !s.f.connected:
		return nil
	case s.f.ocmBroker: // an OCM broker has no records
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
		// The release may still be executed. If the cluster is served again, a late release would drop newly
		// published works.
		s.f.endSubscription()
		return
	}
	cl.release.sending = false
	if s.f.brokerFailed(cl.key(), &cl.release.retry, r.Err) {
		if !cl.release.must { // the cluster is served again, and the broker keeps its records
			s.goOn(cl)
		}
		return
	}
	s.f.ends.reset()
	s.released(cl)
}

// released ends the release of a cluster, which may be served again.
func (s *releases) released(cl *cluster) {
	s.set(cl, false)
	if !cl.selected {
		s.epochs.clearSuspicion(cl.name)
	}
	s.cursor.resume()
	s.goOn(cl)
	s.compare.tidy(cl)
}

// goOn wakes the keys that waited for the end of a release.
func (s *releases) goOn(cl *cluster) {
	if cl.selected {
		s.compare.enter(cl)
	}
	for _, w := range cl.works {
		s.f.wake(BrokerQueue, w.key(), 0)
	}
}
