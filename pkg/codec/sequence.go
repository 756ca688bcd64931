package codec

import (
	"fmt"
	"strconv"
	"time"
)

// A sequence id orders the statuses of one agent. It is a 63 bit number in decimal text: 41 bits milliseconds
// since sequenceEpoch, 10 bits node, 12 bits step. All agents use node 1.
const (
	sequenceEpoch    = 1288834974657 // Unix milliseconds of 2010-11-04T01:42:54.657Z
	sequenceStepBits = 12
	sequenceNodeBits = 10
	sequenceTimeBits = 63 - sequenceNodeBits - sequenceStepBits
	sequenceNode     = 1
	sequenceMaxStep  = 1<<sequenceStepBits - 1
	sequenceMaxTime  = 1<<sequenceTimeBits - 1

	// sequenceHeadroom is the distance that Observe keeps below the highest id: one year in milliseconds, 4096 ids
	// each.
	sequenceHeadroom = 366 * 24 * 3600 * 1000
)

// SequenceTolerance is how far a sequence id may be ahead of the broker's clock. It is long, so that a cluster
// whose clock is wrong by hours or days still reports. It is limited: after a wrong id, the statuses of an
// agent are stale for at most this time. An agent that receives the highest id continues from it at once.
const SequenceTolerance = 72 * time.Hour

type sequence struct {
	time, node, step int64
}

func parseSequence(s string) (sequence, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 || s[0] == '+' {
		return sequence{}, attributeError(ExtSequenceID, s, "must be a decimal number from 0 to 9223372036854775807")
	}
	return sequence{
		time: v >> (sequenceNodeBits + sequenceStepBits),
		node: v >> sequenceStepBits & (1<<sequenceNodeBits - 1),
		step: v & sequenceMaxStep,
	}, nil
}

// CompareSequence reports whether next is newer than prev, the highest accepted id. Any id is newer than prev
// "" (none yet); an equal id is not newer. It returns an *AttributeError about "sequenceid" if an id is not a
// number. It does the same if different nodes made the two ids, because these cannot be compared.
func CompareSequence(prev, next string) (newer bool, err error) {
	n, err := parseSequence(next)
	if err != nil {
		return false, err
	}
	if prev == "" {
		return true, nil
	}
	p, err := parseSequence(prev)
	if err != nil {
		return false, err
	}
	if p.node != n.node {
		return false, attributeError(ExtSequenceID, next, fmt.Sprintf("made by node %d, but the last one (%s) by node %d: they cannot be compared", n.node, prev, p.node))
	}
	if n.time != p.time {
		return n.time > p.time, nil
	}
	return n.step > p.step, nil
}

// CheckSequence returns why a broker rejects a sequence id at the time now. The id is invalid, or so high that
// no newer one is possible soon. The error is an *AttributeError about "sequenceid".
func CheckSequence(id string, now time.Time) error {
	s, err := parseSequence(id)
	if err != nil {
		return err
	}
	if s.node != sequenceNode {
		return attributeError(ExtSequenceID, id, fmt.Sprintf("was made by node %d; agents are node %d", s.node, sequenceNode))
	}
	if ahead := s.time - max(now.UnixMilli()-sequenceEpoch, 0); ahead > SequenceTolerance.Milliseconds() {
		return attributeError(ExtSequenceID, id, fmt.Sprintf("is %d hours ahead of the clock of the broker, at most %d are accepted: set the clock of the cluster",
			ahead/time.Hour.Milliseconds(), int(SequenceTolerance.Hours())))
	}
	return nil
}

// FollowableSequence returns id. If [CheckSequence] would reject the next ids, it returns an id slightly below
// the highest accepted one.
func FollowableSequence(id string, now time.Time) string {
	if id == "" || CheckSequence(id, now.Add(-sequenceMargin)) == nil {
		return id
	}
	return (&Sequencer{}).UpperBound(now.UnixMilli(), (SequenceTolerance - sequenceMargin).Milliseconds())
}

// sequenceMargin is the time span of ids that an agent has above the highest id it receives.
const sequenceMargin = time.Minute

// Sequencer makes sequence ids. Each is newer than all that it made or observed, even if the clock stops or
// goes back. The zero value is ready. It is not safe for concurrent use.
type Sequencer struct {
	time, step int64 // of the highest id so far
	started    bool
}

// Next returns a new id. nowMillis is the wall clock in Unix milliseconds. The ids of this layout end in the
// year 2080; then the last one is returned again.
func (s *Sequencer) Next(nowMillis int64) string {
	now := min(max(nowMillis-sequenceEpoch, 0), sequenceMaxTime)
	switch {
	case !s.started || now > s.time:
		s.time, s.step = now, 0
	case s.step < sequenceMaxStep:
		s.step++
	case s.time < sequenceMaxTime:
		s.time, s.step = s.time+1, 0 // borrow from the next millisecond
	}
	s.started = true
	return s.id()
}

// id returns the highest id so far.
func (s *Sequencer) id() string {
	return strconv.FormatInt(s.time<<(sequenceNodeBits+sequenceStepBits)|sequenceNode<<sequenceStepBits|s.step, 10)
}

// UpperBound returns an id that Next does not exceed for the given milliseconds, 4096 ids each. It consumes no id.
func (s *Sequencer) UpperBound(nowMillis, millis int64) string {
	ahead := *s
	ahead.Next(nowMillis)
	ahead.time, ahead.step = min(ahead.time+millis, sequenceMaxTime), sequenceMaxStep
	return ahead.id()
}

// Observe makes later ids newer than seq; "" changes nothing. The error is an *AttributeError. Either seq is no
// sequence id, another node made it, or less than a year of ids is left above it.
func (s *Sequencer) Observe(seq string) error {
	if seq == "" {
		return nil
	}
	q, err := parseSequence(seq)
	if err != nil {
		return err
	}
	if q.node != sequenceNode {
		return attributeError(ExtSequenceID, seq, fmt.Sprintf("made by node %d; agents use node %d", q.node, sequenceNode))
	}
	if q.time > sequenceMaxTime-sequenceHeadroom {
		return attributeError(ExtSequenceID, seq, "is too high: no newer id could follow")
	}
	if !s.started || q.time > s.time || q.time == s.time && q.step > s.step {
		s.time, s.step, s.started = q.time, q.step, true
	}
	return nil
}
