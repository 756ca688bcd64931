package codec

// Outcomes of a published event that the broker did not reject, in the trailer HeaderOutcome. An OCM broker
// sends none.
const (
	// OutcomeAccepted: stored and queued for delivery.
	OutcomeAccepted = "accepted"
	// OutcomeUnchanged: the same spec is already stored.
	OutcomeUnchanged = "unchanged"
	// OutcomeStale: a newer version or sequence id is already stored; this event is dropped.
	OutcomeStale = "stale"
	// OutcomeQueued: the spec is queued until the deletion of the same id or name is confirmed.
	OutcomeQueued = "queued"
	// OutcomeConfirmed: the deletion is done; no cluster has to confirm it.
	OutcomeConfirmed = "confirmed"
	// OutcomeIgnored: the event has no effect, for instance a status of an unknown work.
	OutcomeIgnored = "ignored"
)
