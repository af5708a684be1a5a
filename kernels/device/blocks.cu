// Moving blocks: t = target source

template <class V> DEVICE void move(const Args& a) {
  EACH(at, a.t[0]) value<V>(a.t[0], offset(a.t[0], at)) = value<V>(a.t[1], offset(a.t[1], at));
}

// whole = bytes of an element.
KERNEL(copy_block) {
  if (a.whole[0] == 8) move<u64>(a);
  else if (a.whole[0] == 4) move<unsigned int>(a);
  else if (a.whole[0] == 2) move<unsigned short>(a);
  else move<unsigned char>(a);
}

// From E to C, and back.
KERNEL(widen_block) {
  EACH(at, a.t[0]) wide(a.t[0], at) = load(a.t[1], at);
}

KERNEL(narrow_block) {
  EACH(at, a.t[0]) store(a.t[0], at, wide(a.t[1], at));
}

// Both of C; whole = whether the source is added to what is there.
KERNEL(blend_block) {
  EACH(at, a.t[0]) {
    C& to = wide(a.t[0], at);
    const C from = wide(a.t[1], at);
    to = a.whole[0] ? from + to : from;
  }
}
