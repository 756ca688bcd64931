package consistency

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// version is the resource version of every list and object. The watch only passes it on.
const version = "5"

func configMap(uid types.UID, counter string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, UID: uid, ResourceVersion: version, Labels: map[string]string{Label: "ns"}},
		Data:       map[string]string{counterField: counter},
	}
}

// apiServer answers each list with the objects of has, and each watch with a new fake watcher.
type apiServer struct {
	*fake.Clientset
	has     []corev1.ConfigMap
	watches chan *apiwatch.FakeWatcher
}

func newAPIServer() *apiServer {
	s := &apiServer{Clientset: fake.NewClientset(), watches: make(chan *apiwatch.FakeWatcher, 10)}
	s.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: s.has}, nil
	})
	s.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, apiwatch.Interface, error) {
		w := apiwatch.NewFake()
		s.watches <- w
		return true, w, nil
	})
	return s
}

func (s *apiServer) set(uid types.UID, counters ...int) {
	s.has = nil
	for _, n := range counters {
		s.has = append(s.has, *configMap(uid, strconv.Itoa(n)))
	}
}

// watching runs a watch for a test.
func watching(t *testing.T, s *apiServer, l *History) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch{Cluster: key.Cluster, Client: s, Namespace: "ns", History: l}.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

func TestWatch_GoesOnWhenTheServerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := NewHistory(time.Now), newAPIServer()
		defer watching(t, s, l)()
		write(l)
		write(l)
		first := <-s.watches
		first.Add(configMap("uid", "1"))
		first.Stop()
		second := <-s.watches
		second.Modify(configMap("uid", "2"))
		second.Modify(configMap("uid", "1"))
		synctest.Wait()
		if got := l.Complaints(); len(got) != 1 || got[0].What != "fell from 2 to 1" {
			t.Errorf("complaints %v, want that of the fall", got)
		}
	})
}

func TestWatch_ListsWhenItIsTooLateToGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := NewHistory(time.Now), newAPIServer()
		write(l)
		s.set("uid", 1)
		defer watching(t, s, l)()
		w := <-s.watches
		s.set("uid") // gone without an event
		w.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		<-s.watches
		if got := l.Complaints(); len(got) != 1 || got[0].What != "was deleted on the cluster at 1; on the hub it was not" {
			t.Errorf("complaints %v, want that of the deletion", got)
		}
	})
}

func TestWatch_ReportsDeletionsAndNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := NewHistory(time.Now), newAPIServer()
		defer watching(t, s, l)()
		write(l)
		w := <-s.watches
		w.Add(configMap("uid", "1"))
		w.Modify(configMap("uid", "one"))
		w.Delete(configMap("uid", "1"))
		synctest.Wait()
		got := l.Complaints()
		if len(got) != 2 || got[0].What != `has "one" where its counter was` || got[1].What != "was deleted on the cluster at 1; on the hub it was not" {
			t.Errorf("complaints %v, want two", got)
		}
	})
}
