package core

import (
	"github.com/hawser-io/hawser/internal/plain"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Alive is an agent's word that it is there, and what it holds of this source in sum, or its
// farewell, by which a broker says that it is gone.
type Alive struct {
	Cluster  string
	Held     codec.Digest
	Farewell bool
	Stamp    plain.Stamp
}

// AliveOf reads it. The error is a *codec.AttributeError.
func AliveOf(e codec.Event) (a *Alive, err error) {
	a = &Alive{}
	if a.Cluster, _, err = codec.StringExtension(e, codec.ExtClusterName); err != nil {
		return nil, err
	}
	if a.Stamp, err = plain.MarksOf(e); err != nil {
		return nil, err
	}
	a.Held, a.Farewell, err = codec.ParseAlive(e)
	return a, err
}

// sums are what an agent says of its works.
type sums struct {
	// held is what it holds in sum, until that was compared; gap is another sum than it should
	// have.
	held *codec.Digest
	gap  gap
}

// gap is a sum that an agent holds and should not, and how often it has said so in a row.
type gap struct {
	held  codec.Digest
	times int
}

// alive takes it. What is under way to the agent makes a difference, so one counts that is there
// twice in a row.
func (p *agentResponder) alive(a *Alive) {
	cl := p.f.clusters[a.Cluster]
	if cl == nil || !p.f.plain || !p.f.mayTell(cl) || cl.far.list != nil {
		return
	}
	cl.far.sums.held = &a.Held
	cl.far.tagAll(cl)
	p.f.wakeCluster(SpecLane, cl)
}

// nextSum compares what an agent holds in sum with what it should hold.
func (p *agentResponder) nextSum(cl *cluster) *todo {
	r, s := &cl.far, &cl.far.sums
	if s.held == nil || r.asking {
		return nil
	}
	if t := p.f.nextTag(cl, &r.untagged); t != nil {
		return t
	}
	held := *s.held
	s.held = nil
	mine, sent := p.sumOf(cl)
	switch {
	case !sent: // what is not published yet makes a difference
	case held == mine:
		s.gap = gap{}
		for _, w := range cl.works {
			if w.comparable() != nil {
				w.spec.redelivery.listed(w.hub.fingerprint(), true)
			}
		}
		p.rejudge(cl)
	case s.gap.held != held:
		s.gap = gap{held: held, times: 1}
	default:
		if s.gap.times++; s.gap.times&(s.gap.times-1) == 0 { // ever less often
			return p.whatDoYouHold(cl)
		}
	}
	return nil
}

// sumOf is what the agent of a cluster should hold in sum; sent: all of that was published.
func (p *agentResponder) sumOf(cl *cluster) (d codec.Digest, sent bool) {
	sent = true
	for _, w := range cl.works {
		if w.comparable() == nil {
			continue
		}
		sent = sent && w.hub.isTagged() && w.broker.on(p.f.sub) == holds && w.broker.fingerprint.equal(w.hub.fingerprint())
		d.Add(codec.RecordHash(string(w.uid), w.hub.tag))
	}
	return d, sent
}

// whatDoYouHold has an agent list what it holds, as it does when it is not known to who speaks.
func (p *agentResponder) whatDoYouHold(cl *cluster) *todo {
	stamp := p.f.stamp(cl)
	stamp.Heard = codec.Session{}
	return p.ask(cl, Ask{Cluster: cl.name, Held: ofNobody, Stamp: stamp, Limit: p.f.limit}, func(Result) {})
}
