package codec

// What a broker says about a published event it did not refuse, in the trailer
// HeaderOutcome. A stock broker says nothing.
const (
	// OutcomeAccepted: written, and on its way.
	OutcomeAccepted = "accepted"
	// OutcomeUnchanged: the same spec is already there.
	OutcomeUnchanged = "unchanged"
	// OutcomeStale: a newer version or sequence is already there; this one is
	// dropped.
	OutcomeStale = "stale"
	// OutcomeQueued: kept until a deletion of the same id or name is confirmed.
	OutcomeQueued = "queued"
	// OutcomeConfirmed: a deletion that no cluster has to confirm: it is done.
	OutcomeConfirmed = "confirmed"
	// OutcomeIgnored: the event means nothing here (a status of an unknown
	// work, for instance).
	OutcomeIgnored = "ignored"
)
