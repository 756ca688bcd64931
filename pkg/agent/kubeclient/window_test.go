package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestWindow_FollowsAnswers(t *testing.T) {
	// Each letter is a step: s sends a request, a, c and u end the oldest one as answered, congested and unproven.
	for name, c := range map[string]struct {
		most  int
		steps string
		limit float64
	}{
		"begins with four":                             {20, "", 4},
		"begins with less if less are allowed":         {2, "", 2},
		"one request per answer of a full window":      {20, "ssss" + "assassass", 7},
		"does not grow while requests are few":         {20, strings.Repeat("sa", 10), 4},
		"does not grow beyond the most":                {5, "ssss" + strings.Repeat("as", 20), 5},
		"halves when the server is congested":          {20, "ssss" + "c", 2},
		"requests of one time are one sign":            {20, "ssss" + "cccc", 2},
		"halves again for a request after a reduction": {20, "ssss" + "cccc" + "s" + "c", 1},
		"never less than one":                          {20, "ssss" + "cccc" + strings.Repeat("sc", 5), 1},
		"grows by one per window after a reduction":    {20, "ssss" + "cccc" + "ss" + "asa", 2 + 1.0/2 + 1/2.5},
		"errors without relation to load":              {20, "ssss" + "uuuu", 4},
	} {
		w := newWindow(c.most)
		var sent []uint64
		for _, step := range c.steps {
			if step == 's' {
				w = w.send()
				sent = append(sent, w.sent)
				continue
			}
			w = w.end(sent[0], map[rune]outcome{'a': answered, 'c': congested, 'u': unproven}[step])
			sent = sent[1:]
		}
		if math.Abs(w.limit-c.limit) > 1e-9 || w.inFlight != len(sent) {
			t.Errorf("%s: limit %v with %d in flight, want %v with %d", name, w.limit, w.inFlight, c.limit, len(sent))
		}
	}
}

// A server that keeps up with six requests at a time, and rejects the seventh at once.
func TestWindow_SettlesAtCapacity(t *testing.T) {
	const capacity, rounds = 6, 2000
	w, rejected := newWindow(DefaultInFlight), 0
	var numbers []uint64
	for range rounds {
		for w.isOpen() {
			if w = w.send(); w.inFlight > capacity {
				w = w.end(w.sent, congested)
				rejected++
			} else {
				numbers = append(numbers, w.sent)
			}
		}
		w = w.end(numbers[0], answered)
		numbers = numbers[1:]
		if w.limit >= capacity+2 {
			t.Fatalf("limit %v", w.limit)
		}
	}
	// Between two rejections the window grows from 3.5 to 7: that takes about 20 answers.
	if least, most := rounds/40, rounds/15; rejected < least || rejected > most {
		t.Errorf("%d rejections for %d answers, want %d to %d", rejected, rounds, least, most)
	}
}

func TestOutcomeOf(t *testing.T) {
	retryAfter := http.Header{"Retry-After": {"1"}}
	for i, c := range []struct {
		res  http.Response
		err  error
		took time.Duration
		want outcome
	}{
		{http.Response{StatusCode: http.StatusOK}, nil, 0, answered},
		{http.Response{StatusCode: http.StatusCreated}, nil, time.Minute, answered}, // the circuit breaker counts slow answers
		{http.Response{StatusCode: http.StatusNotFound}, nil, 0, answered},
		{http.Response{StatusCode: http.StatusTooManyRequests}, nil, 0, congested},
		{http.Response{StatusCode: http.StatusTooManyRequests, Header: retryAfter}, nil, 0, congested},
		{http.Response{StatusCode: http.StatusGatewayTimeout}, nil, 0, congested},
		{http.Response{StatusCode: http.StatusInternalServerError}, nil, 0, unproven},
		{http.Response{StatusCode: http.StatusInternalServerError}, nil, longRequest, congested},
		{http.Response{StatusCode: http.StatusServiceUnavailable}, nil, 0, unproven},
		{http.Response{StatusCode: http.StatusServiceUnavailable, Header: retryAfter}, nil, 0, congested},
		{http.Response{}, context.Canceled, time.Minute, unproven},
		{http.Response{}, fmt.Errorf("post: %w", context.DeadlineExceeded), 0, congested},
		{http.Response{}, os.ErrDeadlineExceeded, 0, congested},
		{http.Response{}, errors.New("connection refused"), 0, unproven},
		{http.Response{}, errors.New("connection reset"), longRequest, congested},
	} {
		if got := outcomeOf(&c.res, c.err, c.took); got != c.want {
			t.Errorf("%d: got %v, want %v", i, got, c.want)
		}
	}
}
