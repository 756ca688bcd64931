package core

// Next returns what to do now for key, nil when there is nothing, or not yet;
// in the latter case the core wakes the key when it is time. The result of the
// effect must be given to Done before Next is called again for the same lane
// and key.
func (c *Core) Next(lane Lane, key Key) Effect {
	at, now := slot{lane, key}, stamp{c.life, c.fleet.sub}
	if was, busy := c.inFlight[at]; busy && was == now {
		return nil
	}
	e := c.next(lane, key)
	if e != nil {
		c.inFlight[at] = stamp{c.life, c.fleet.sub}
	}
	return e
}

func (c *Core) next(lane Lane, key Key) Effect {
	switch w, cl := c.fleet.works[key.UID], c.fleet.clusters[key.Cluster]; {
	case key == Key{}:
		return c.nextOfAll(lane)
	case c.lives.over:
		return nil
	case w != nil && lane == SpecLane:
		return c.specs.next(w)
	case w != nil:
		return first(w, c.questions.next, c.statuses.next)
	case cl == nil || key.UID != "":
		return nil
	case lane == HubLane:
		return c.questions.nextList(cl)
	default:
		return first(cl, c.releases.next, c.compare.next, c.statuses.nextAsk)
	}
}

// first returns the first thing that there is to do.
func first[T any](about T, all ...func(T) Effect) Effect {
	for _, next := range all {
		if e := next(about); e != nil {
			return e
		}
	}
	return nil
}

// nextOfAll decides the next step of the source as a whole.
func (c *Core) nextOfAll(lane Lane) Effect {
	l := c.lives
	switch {
	case lane == HubLane && l.ended():
		s, _ := l.state()
		c.begin(s, l.reason)
		return BeginLife{Life: c.life, Reason: l.reason}
	case lane == HubLane && l.over:
		return l.nextSave()
	case l.over:
		return nil
	}
	all := []func() Effect{l.nextLocate, l.nextSave}
	if lane == SpecLane {
		all = []func() Effect{c.fleet.nextEnd, c.compare.nextInventory, c.compare.nextCompared, c.cursor.nextAck}
	}
	for _, next := range all {
		if e := next(); e != nil {
			return e
		}
	}
	return nil
}

// Done takes the result of an effect that Next returned for a lane and key. What was
// decided in another life of the hub, or is about another subscription, says nothing
// any more.
func (c *Core) Done(lane Lane, key Key, e Effect, r Result) {
	s := c.inFlight[slot{lane, key}]
	delete(c.inFlight, slot{lane, key})
	switch save, saves := e.(Save); {
	case s.life != c.life:
	case saves:
		c.lives.doneSave(save, r)
	case !c.lives.over && (s.sub == c.fleet.sub || !ofSubscription(e)):
		c.done(e, r)
	}
}

// ofSubscription reports whether the result of an effect is valid for one
// subscription only.
func ofSubscription(e Effect) bool {
	switch e.(type) {
	case Publish, Release, Ask, AskInventory, Delete, SendCompared, SendAck, EndSubscription, Locate:
		return true
	}
	return false
}

func (c *Core) done(e Effect, r Result) {
	switch e := e.(type) {
	case AddFinalizer:
		c.specs.doneAddFinalizer(e, r)
	case Publish:
		c.specs.donePublish(e, r)
	case Release:
		c.releases.done(e, r)
	case Ask:
		c.statuses.doneAsk(e, r)
	case PatchStatus:
		c.statuses.donePatchStatus(e, r)
	case RemoveFinalizer:
		c.statuses.doneRemoveFinalizer(e, r)
	case DeleteCompleted:
		c.statuses.doneDeleteCompleted(e, r)
	case SendAck:
		c.cursor.doneSendAck(e, r)
	default:
		c.doneComparing(e, r)
	}
}

// answered takes the hub's answer to a question about one work.
func (c *Core) answered(e Get, r Result) {
	w := c.fleet.works[e.UID]
	if w == nil {
		return
	}
	before := w.hub.object
	c.questions.doneGet(w, e, r)
	if o := w.hub.object; o != before {
		c.moved(w, before)
	}
}

// doneComparing takes the result of what a comparison needs.
func (c *Core) doneComparing(e Effect, r Result) {
	switch e := e.(type) {
	case Get:
		if e.attempt != 0 {
			c.compare.doneGet(e, r)
		} else {
			c.answered(e, r)
		}
	case List:
		if e.attempt != 0 {
			c.compare.doneList(e, r)
		} else {
			c.questions.doneList(e, r)
		}
	case Tag:
		c.compare.doneTag(e, r)
	case AskInventory:
		c.compare.doneAskInventory(e, r)
	case Delete:
		c.compare.doneDelete(e, r)
	case SendCompared:
		c.compare.doneSendCompared(e, r)
	case Locate:
		c.lives.doneLocate(e, r)
		if !c.lives.over && c.lives.located() {
			c.compare.located()
		}
	}
}
