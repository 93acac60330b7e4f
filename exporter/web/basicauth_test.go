package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// hashOf returns the hash of a password, of a cost.
func hashOf(t *testing.T, password string, cost int) string {
	t.Helper()
	hash := must.Get(bcrypt.GenerateFromPassword([]byte(password), cost))(t)
	return string(hash)
}

// Checking a wrong password costs the same for each user, no matter what the hash costs, and for an
// unknown user.
func TestWrongPasswordsTakeTheSameTime(t *testing.T) {
	cheap, usual := hashOf(t, "cheap", bcrypt.MinCost), hashOf(t, "usual", bcrypt.MinCost+3)
	dear := "$2a$12$" + hashOf(t, "dear", bcrypt.MinCost)[7:] // of this cost nothing is computed here
	for name, users := range map[string]map[string]string{
		"different costs": {"cheap": cheap, "usual": usual, "dear": dear},
		"one cheap user":  {"cheap": cheap},
	} {
		v := newVerifier(func() (map[string]string, error) { return users, nil })
		work := 0
		v.compare = func(hash, password []byte) error {
			cost := must.Get(strconv.Atoi(string(hash[4:6])))(t)
			work += 1 << cost
			if cost > bcrypt.MinCost+3 {
				return bcrypt.ErrMismatchedHashAndPassword
			}
			return bcrypt.CompareHashAndPassword(hash, password)
		}
		want := 0
		for _, user := range []string{"nobody", "cheap", "usual", "dear", ""} {
			work = 0
			if right, err := v.verify(t.Context(), user, "wrong"); right || err != nil {
				t.Errorf("%s: %s: right %v, %v", name, user, right, err)
			}
			if want == 0 {
				want = work
			}
			expect.That(t, work == want, "%s: %s takes %d, nobody %d", name, user, work, want)
		}
		for user := range users {
			right, err := v.verify(t.Context(), user, user)
			expect.That(t, right == (user != "dear") && err == nil,
				"%s: the password of %s is right: %v, %v", name, user, right, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newVerifier(func() (map[string]string, error) {
		return map[string]string{"cheap": cheap}, nil
	}).verify(ctx, "a", "b"); err == nil {
		t.Error("a request that has ended is checked")
	}
}

// Wrong passwords never reach the next handler. Right ones do, and so do requests without one,
// which it must answer.
func TestWrongPasswordsStop(t *testing.T) {
	users := map[string]string{"user": hashOf(t, "right", bcrypt.MinCost)}
	var fail error
	v := newVerifier(func() (map[string]string, error) { return users, fail })
	v.compare = func(hash, password []byte) error {
		if string(hash) != users["user"] {
			return bcrypt.ErrMismatchedHashAndPassword
		}
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	var counts rejections
	handler := passwords(next, v, counts.add)
	ask := func(user, password string) int {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		if user != "" {
			r.SetBasicAuth(user, password)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") != "Basic" {
			t.Error("a browser is not told to ask for a password")
		}
		return w.Code
	}
	for _, test := range []struct {
		user, password string
		fail           error
		want           int
	}{
		{user: "user", password: "right", want: http.StatusAccepted},
		{user: "user", password: "wrong", want: http.StatusUnauthorized},
		{user: "nobody", password: "right", want: http.StatusUnauthorized},
		{want: http.StatusAccepted},
		{user: "user", password: "right", fail: errors.New("no file"), want: http.StatusInternalServerError},
	} {
		fail = test.fail
		expect.Is(t, ask(test.user, test.password), test.want, "%s %s: status", test.user, test.password)
	}
	fail = nil
	clear(users)
	expect.Is(t, ask("user", "wrong"), http.StatusAccepted, "where nobody has a password, status")
}
