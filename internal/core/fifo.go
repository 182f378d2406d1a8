package core

import "slices"

// A fifo is a queue of requests that reuses its memory.
type fifo struct {
	items []*Request
	head  int
}

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) all() []*Request { return q.items[q.head:] }

func (q *fifo) push(r *Request) { q.items = append(q.items, r) }

func (q *fifo) pop() *Request {
	r := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head > 64 && q.head*2 > len(q.items):
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return r
}

// remove takes a request out of the queue, and reports whether it was in it.
func (q *fifo) remove(r *Request) bool {
	for i := q.head; i < len(q.items); i++ {
		if q.items[i] == r {
			q.items = slices.Delete(q.items, i, i+1)
			return true
		}
	}
	return false
}
