package codec

import (
	"fmt"
	"strconv"
)

// A sequence id orders the statuses of one agent. It is a 63 bit number in
// decimal text: 41 bits milliseconds since sequenceEpoch, 10 bits node, 12
// bits step. Every agent uses node 1.
const (
	sequenceEpoch    = 1288834974657 // Unix milliseconds of 2010-11-04T01:42:54.657Z
	sequenceStepBits = 12
	sequenceNodeBits = 10
	sequenceTimeBits = 63 - sequenceNodeBits - sequenceStepBits
	sequenceNode     = 1
	sequenceMaxStep  = 1<<sequenceStepBits - 1
	sequenceMaxTime  = 1<<sequenceTimeBits - 1

	// sequenceHeadroom is what Observe keeps free above an id: a year of
	// milliseconds, each good for 4096 ids.
	sequenceHeadroom = 366 * 24 * 3600 * 1000
)

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

// CompareSequence reports whether next is newer than prev, the highest id
// accepted so far. Anything is newer than prev "" (none yet); equal is not
// newer. It returns an *AttributeError about "sequenceid" when an id is not a
// number, or when the two were made by different nodes, which cannot be
// compared.
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

// Sequencer makes sequence ids, each newer than all it made or observed, even
// when the clock stands still or goes back. The zero value is ready. It is not
// safe for concurrent use.
type Sequencer struct {
	time, step int64 // of the highest id so far
	started    bool
}

// Next returns a new id. nowMillis is the wall clock in Unix milliseconds. In
// the year 2080 the ids of this layout end; from then on the last one is
// returned again.
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

// id is the highest so far.
func (s *Sequencer) id() string {
	return strconv.FormatInt(s.time<<(sequenceNodeBits+sequenceStepBits)|sequenceNode<<sequenceStepBits|s.step, 10)
}

// Ahead returns an id that Next will not exceed for so many milliseconds, 4096
// ids each. It uses up nothing.
func (s *Sequencer) Ahead(nowMillis, millis int64) string {
	ahead := *s
	ahead.Next(nowMillis)
	ahead.time, ahead.step = min(ahead.time+millis, sequenceMaxTime), sequenceMaxStep
	return ahead.id()
}

// Observe makes later ids newer than seq; "" is no id and changes nothing. The
// error is an *AttributeError: seq is not a sequence id, was made by another
// node, or is so high that less than a year of ids is left above it.
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
		return attributeError(ExtSequenceID, seq, "leaves no room for newer ids")
	}
	if !s.started || q.time > s.time || q.time == s.time && q.step > s.step {
		s.time, s.step, s.started = q.time, q.step, true
	}
	return nil
}
